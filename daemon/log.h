/* log.h: the voice. One event is one line on stderr: "level what key=value…".
 *
 * Only the daemon speaks, and an error is logged once, in reply. Thread-safe: a line is one write.
 *
 * Lines of one kind have a rate, so that a flood cannot fill a disk: what is beyond it is counted,
 * and the count is a line of its own. A line's kind is its text up to the first two spaces
 * ("refused"). Debug lines have no rate: whoever asks for them wants them all.
 */
#ifndef ATTND_DAEMON_LOG_H
#define ATTND_DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum srv_level { SRV_ERROR, SRV_WARN, SRV_INFO, SRV_DEBUG } srv_level;

/* "error", "warn", "info", "debug"; anything else leaves the level as it is and returns false. */
bool srv_log_set_level(const char *name);
srv_level srv_log_level(void);
const char *srv_log_level_name(srv_level level);

/* Lines of one kind that are written in a second; 0: all. */
void srv_log_set_rate(int64_t lines);

/* Says now how many lines were left out, for kinds whose second is over; all: for every kind.
 * Called now and then, since a flood that stops brings no line any more that could say it. */
void srv_log_flush(bool all);

/* What follows the level: "attend ok  request=8121 session=7". Control characters are escaped and
 * long lines cut, so a client's text cannot forge a line. */
void srv_log(srv_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

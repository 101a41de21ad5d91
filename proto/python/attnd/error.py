"""The refusal that travels: what a call raises when the daemon says no, or cannot be asked."""


class Error(Exception):
    """A call that did not succeed.

    code     canonical, as in attnd.proto: "INVALID_ARGUMENT", "UNAVAILABLE", "DEADLINE_EXCEEDED", …
    reason   a label that never changes: "BAD_BLOCK", "TIMED_OUT", "UNREACHABLE", …
    field    path of the offending value ("batch.tables[0].block_ids[7]"), or ""
    message  "field = value: what would be right", for people
    """

    def __init__(self, code, reason, field, message):
        super().__init__(code, reason, field, message)
        self.code = code
        self.reason = reason
        self.field = field
        self.message = message

    def __str__(self):
        return f"{self.code} ({self.reason}): {self.message}"


def timed_out(field, message):
    """The daemon did not answer in time; what it does with the request is not known."""
    return Error("DEADLINE_EXCEEDED", "TIMED_OUT", field, message)


def unreachable(field, message):
    """There is no daemon to talk to."""
    return Error("UNAVAILABLE", "UNREACHABLE", field, message)


def broken(message):
    """The connection ended: the daemon is gone, or another one has taken its place."""
    return Error("UNAVAILABLE", "RESTARTED", "data", message)

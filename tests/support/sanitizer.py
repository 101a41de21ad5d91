"""What the sanitizers of gcc and clang print, found in the text of a process."""

import re

REPORT = re.compile(
    r"^(==\d+==\s?ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|FATAL: ThreadSanitizer"
    r"|ThreadSanitizer: |\w+Sanitizer:DEADLYSIGNAL|\S+:\d+:\d+: runtime error: ).*",
    re.M,
)


def first_report(text):
    """The line that begins the first report in text; None when there is none."""
    found = REPORT.search(text)
    return found.group(0) if found else None

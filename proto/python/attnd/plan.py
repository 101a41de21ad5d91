"""Plans: a batch that the daemon has checked once and keeps, for all layers and the next steps."""

from . import call, error


class Plan:
    """A plan of the session, from Client.create_plan(); a context manager that drops it.

    handle   its number on the wire
    version  the newest: 1, and one more with each update. An update counts as soon as it is sent,
             so that steps with updates can be in flight together, and no more when it is refused;
             after a time-out nobody knows
    model    the Model it is of
    """

    def __init__(self, reply, model, submit_update, drop):
        self.handle = reply.plan
        self.version = reply.version
        self.model = model
        self._submit_update = submit_update
        self._drop = drop

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.drop()
        except error.Error:
            if kind is None:
                raise  # else the first error is the one to tell

    def update(self, timeout=None, **values):
        """The next call of the same sequences → the new version.

        q_lens, kv_lens   absolute; None: as they were
        appended          the new blocks only: of each sequence those that its kv_len needs more
                          than before, as a list of lists of any lengths, a Table, or Tables
        slots, positions  [tokens]; needed anew when the plan was made with them

        Error STALE when the plan has moved on, else as Client.attend; then the plan is as it was.
        """
        return self.submit_update(timeout=timeout, **values).wait().version

    def submit_update(self, after=None, timeout=None, **values):
        """update() without waiting: sends the request → Pending, of UpdatePlanReply: version.

        after  Pending of this client that must have been launched before. What is to run with the
               new version names this one in its own after, and so does the next update: without it
               either may overtake
        """
        return self._submit_update(self, values, after, timeout)

    def drop(self, timeout=None):
        """Gives the plan back; work that was sent with it goes on."""
        self._drop(self, timeout)

    def fill_update(self, message, values):
        """Writes the next update into a PlanUpdate message; what to do when it is refused."""
        begin = self.version
        call.fill_update(message, values)
        message.plan = self.handle
        message.version = begin
        self.version = begin + 1

        def on_refused():
            self.version = min(self.version, begin)

        return on_refused

    def __repr__(self):
        return f"<attnd.Plan {self.handle}, version {self.version}>"

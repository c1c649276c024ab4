"""Workers without a cluster."""


class InProcess:
    """Runs calls in this process, one after another."""

    def share(self, value):
        return value

    def each(self, stage, function, calls, progress=None, n_done=0):
        for number, arguments in enumerate(calls):
            yield number, function(*arguments)
            if progress is not None:
                progress(stage, n_done + number + 1, n_done + len(calls))

    def merged(self, stage, function, calls, merge, k, progress=None):
        merged = []
        for _, result in self.each(stage, function, calls, progress):
            merged = [merge([*merged, result], k)]
        return merged[0]

"""An executor without a cluster."""


class InProcess:
    """Runs tasks in this process, one after another."""

    def share(self, value):
        return value

    def each(self, stage, tasks, progress=None):
        for number, task in enumerate(tasks):
            yield number, task.function(*task.arguments)
            if progress is not None:
                progress(stage, number + 1, len(tasks))

    def merged(self, stage, tasks, merge, k, progress=None):
        merged = []
        for _, result in self.each(stage, tasks, progress):
            merged = [merge([*merged, result], k)]
        return merged[0]

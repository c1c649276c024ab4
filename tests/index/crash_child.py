"""A process that changes an index until it is killed, and the one that kills it, many times over.

    python -m tests.index.crash_child FOLDER KILLS SEED

Every round forks a child, which makes changes known in advance, and tells through a pipe when it begins and ends each.
At a random moment it gets a SIGKILL. What is then on the disk must be the state after the last change that it ended, or
after the one it had begun: nothing else, no mixture. The process is warm before it forks, so that a round takes
milliseconds. Prints how many kills fell into which kind of change.
"""

import collections
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from autojacobin.index.index import Index
from tests.index.index_model import N_FEATURES, as_bytes, contents, small_hasher
from tests.waiting import exit_status, read_from


def changes(seed, model, next_id):
    """Endless changes, each with its name, what to do to an index, and the model afterwards."""
    rng = np.random.default_rng(seed)
    while True:
        new = rng.normal(size=(30, N_FEATURES)).astype(np.float32)
        name = str(rng.choice(["add", "upsert", "remove", "compact", "save"], p=[0.3, 0.25, 0.2, 0.15, 0.1]))
        if name == "remove" and not model:
            continue
        if name == "add":
            n = int(rng.integers(1, 30))
            model = model | dict(enumerate(new[:n], next_id))
            next_id += n
            yield name, (lambda index, n=n, new=new: index.add(new[:n])), model, next_id
        elif name == "upsert":
            ids = rng.permutation(300)[: int(rng.integers(1, 30))]
            model = model | dict(zip(ids.tolist(), new, strict=False))
            next_id = max([next_id, *(ids + 1).tolist()])
            yield name, (lambda index, ids=ids, new=new: index.upsert(new[: len(ids)], ids)), model, next_id
        elif name == "remove":
            share = 0.9 if len(model) > 150 else 0.2
            ids = np.array([i for i in model if rng.random() < share], dtype=np.int64)
            gone = set(ids.tolist())
            model = {i: vector for i, vector in model.items() if i not in gone}
            yield name, (lambda index, ids=ids: index.remove(ids)), model, next_id
        elif name == "compact":
            yield name, Index.compact, model, next_id
        else:
            yield name, (lambda index: index.save(index.path.parent / "saved", overwrite=True)), model, next_id


def child(path, seed, model, next_id, pipe):
    index = Index.open(path)
    for _, change, _, _ in changes(seed, model, next_id):
        os.write(pipe, b"b")
        change(index)
        os.write(pipe, b"e")


def one_round(path, seed, model, next_id, delay):
    """Fork, kill, and give the pipe's letters."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            child(path, seed, model, next_id, writing)
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
        os._exit(1)
    os.close(writing)
    first = read_from(reading, 1)  # from here on it is changing things
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    status = exit_status(pid)
    assert os.WIFSIGNALED(status), "the child ended by itself"
    letters = first
    while part := read_from(reading, 4096):
        letters += part
    os.close(reading)
    return letters


def state_of(path):
    with Index.open(path) as index:
        index.verify()
        return contents(index), index._state.next_id


def main(folder, kills, seed):
    path = Path(folder) / "index"
    with Index.create(path, small_hasher()) as index:
        index.add(np.eye(N_FEATURES, dtype=np.float32))
        index.compact()
        index.save(path.parent / "saved", overwrite=True)
    model, next_id = dict(enumerate(np.eye(N_FEATURES, dtype=np.float32))), N_FEATURES
    saved, tally, rng = as_bytes(model), collections.Counter(), random.Random(seed)
    for number in range(kills):
        letters = one_round(path, number + seed, model, next_id, rng.uniform(0, 0.02))
        begun, ended = letters.count(b"b"), letters.count(b"e")
        assert begun - ended in (0, 1), letters
        states, may_be_saved = [(model, next_id)], [saved]
        stream = changes(number + seed, model, next_id)
        for step in range(begun):
            name, _, *state = next(stream)
            states.append(tuple(state))
            if name == "save":
                may_be_saved = [*may_be_saved, as_bytes(state[0])] if step == ended else [as_bytes(state[0])]
        found = state_of(path)
        for model, next_id in states[ended:]:
            if found == (as_bytes(model), next_id):
                break
        else:
            raise AssertionError(f"round {number}: a state that was never committed, after {letters!r}")
        saved, _ = state_of(path.parent / "saved")
        assert saved in may_be_saved, f"round {number}: a saved state that was never committed"
        tally[name if begun > ended else "between"] += 1
    print(dict(tally))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

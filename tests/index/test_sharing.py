"""Several readers and one writer of an index, and saving where an index is already."""

import os
import subprocess
import sys

import pytest

from autojacobin import ITQ
from autojacobin.errors import IndexLockedError, StorageError
from autojacobin.index.index import Index
from tests.index.index_model import contents, vectors
from tests.waiting import exit_status, read_from


def test_a_reader_keeps_its_state_until_it_refreshes(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher) as writer, Index.open(tmp_path / "index") as reader:
        writer.add(vectors(20))
        assert len(reader) == 0
        reader.refresh()
        before = contents(reader)
        writer.remove([3])
        writer.compact()
        writer.add(vectors(5))
        assert contents(reader) == before
        assert len(reader.search(vectors(2), 20, rerank=False)[1][0]) == 20
        reader.verify()
        reader.refresh()
        assert contents(reader) == contents(writer)


def test_a_second_writer_is_told_who_writes_and_may_write_afterwards(hasher, tmp_path):
    first = Index.create(tmp_path / "index", hasher)
    second = Index.open(tmp_path / "index")
    with pytest.raises(IndexLockedError, match=f"being written to by process {os.getpid()},"):
        second.add(vectors(3))
    program = (
        f"import sys; from autojacobin.index.index import Index; Index.open({str(tmp_path / 'index')!r}).remove([])"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=1200)
    assert f"being written to by process {os.getpid()}," in other.stderr
    first.add(vectors(4))
    first.close()
    second.add(vectors(3))
    assert second.ids.tolist() == list(range(7))  # after a look at what the first had done meanwhile
    second.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork among threads; the child does next to nothing
def test_a_fork_does_not_share_the_right_to_write_and_does_not_keep_it(hasher, tmp_path):
    index = Index.create(tmp_path / "index", hasher)
    reading, writing = os.pipe()
    hearing, saying = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            index.add(vectors(1))
        except IndexLockedError:
            os.write(saying, b"!")
            read_from(reading, 1)  # stays until it is told to go
            os._exit(0)
        os._exit(1)
    os.close(saying)
    index.add(vectors(2))
    read_from(hearing, 1)  # the lock is held until the child was refused, or has ended
    index.close()
    with Index.open(tmp_path / "index") as other:
        other.add(vectors(1))
        assert len(other) == 3
    os.write(writing, b"!")
    assert exit_status(pid) == 0
    for end in (reading, writing, hearing):
        os.close(end)


def test_an_index_that_is_forgotten_gives_the_right_to_write_back(hasher, tmp_path):
    Index.create(tmp_path / "index", hasher).add(vectors(2))
    with Index.open(tmp_path / "index") as other:
        other.add(vectors(1))
        assert len(other) == 3


def test_saving_over_an_index_that_is_being_written_is_refused(index, hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher), pytest.raises(IndexLockedError):
        index.save(tmp_path / "index", overwrite=True)


def test_saving_replaces_an_index_only_with_overwrite(index, hasher, tmp_path):
    index.save(tmp_path / "index")
    names = {entry.name for entry in (tmp_path / "index").iterdir()}
    other = Index(ITQ(3, random_state=0).fit(vectors(50)))
    other.add(vectors(7))
    with pytest.raises(StorageError, match="holds an index already; pass overwrite=True to replace it, or give anoth"):
        other.save(tmp_path / "index")
    with Index.open(tmp_path / "index") as kept:
        assert contents(kept) == contents(index)
    other.save(tmp_path / "index", overwrite=True)
    with Index.open(tmp_path / "index") as opened:
        assert contents(opened) == contents(other)
        assert opened.hasher.n_bits == 3
        opened.save(tmp_path / "index")  # where it is already
    assert names & {entry.name for entry in (tmp_path / "index").iterdir()} == {"LOCK", "MANIFEST.json"}

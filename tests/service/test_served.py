"""New versions of an index are picked up while it is served, and a broken one is left alone."""

import threading

import numpy as np
import pytest

from autojacobin import ITQ, LSH
from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.index.index import Index
from autojacobin.service import Client, Limits, served, serving
from autojacobin.service.served import ServedIndex, named_paths, open_indexes, width_of
from tests.search.gpu_kernels import use_fake_cupy
from tests.service.conftest import WIDTH
from tests.service.service_process import eventually
from tests.waiting import joined


@pytest.fixture
def home(points, tmp_path):
    with Index.create(tmp_path / "index", LSH(16, random_state=0).fit(points)) as index:
        index.add(points[:100])
    return tmp_path / "index"


def test_a_copy_on_a_gpu_is_served_and_follows_its_folder(home, points, monkeypatch):
    use_fake_cupy(monkeypatch)
    indexes = open_indexes({"index": home}, device="cuda")
    assert "on a GPU" in repr(indexes["index"].index)
    assert indexes["index"].index.search(points[:2], 1)[1].ravel().tolist() == [0, 1]
    with Index.open(home) as writer:
        writer.add(points[100:200])
    for one in indexes.values():
        one.refresh()
    assert "on a GPU" in repr(indexes["index"].index)
    assert indexes["index"].index.search(points[150:151], 1)[1].tolist() == [[150]]


def test_an_addition_and_a_new_index_are_seen_and_no_search_falls_between(home, points):
    wrong, stop = [], threading.Event()

    def ask_all_the_time(address):
        with Client(address) as client:
            while not stop.is_set():
                distances, ids = client.search(points[:2], 1)
                if ids[:, 0].tolist() != [0, 1] or distances.any():
                    wrong.append((distances, ids))

    with serving({"index": home}, poll_seconds=0.02) as address, Client(address) as client:
        asking = threading.Thread(target=ask_all_the_time, args=(address,))
        asking.start()
        try:
            with Index.open(home) as writer:
                writer.add(points[100:300])
                assert eventually(lambda: client.indexes()[0]["vectors"] == 300)
                assert client.search(points[250:251], 1)[1].tolist() == [[250]]
                writer.remove([250])
                writer.compact()
            assert eventually(lambda: client.indexes()[0]["vectors"] == 299)
            other = Index(ITQ(8, random_state=0).fit(points))
            other.add(points)
            other.save(home, overwrite=True)
            assert eventually(lambda: client.indexes()[0]["hasher"] == "ITQ")
            assert client.encode(points[:3]) == other.hasher.encode(points[:3])
        finally:
            stop.set()
            joined(asking)
    assert wrong == []


def test_a_new_width_is_answered_with_a_sentence(points, tmp_path):
    index = Index(LSH(16, random_state=0).fit(points))
    index.add(points)
    index.save(tmp_path / "index")
    served = ServedIndex("index", tmp_path / "index")
    narrow = Index(LSH(16, random_state=0).fit(points[:, :5]))
    narrow.add(points[:, :5])
    narrow.save(tmp_path / "index", overwrite=True)
    assert width_of(served.index) == WIDTH
    assert served.refresh()
    assert width_of(served.index) == 5
    assert not served.refresh()  # there is nothing newer


def test_a_broken_version_is_not_served_until_it_is_fixed(home, points):
    served = ServedIndex("index", home)
    whole = (home / "MANIFEST.json").read_bytes()
    (home / "MANIFEST.json").write_bytes(whole[:-20])
    for _ in range(3):
        assert not served.refresh()
    assert served.failed_refreshes == 1  # counted once, however often it is looked at
    assert served.index.search(points[:1], 1)[1].tolist() == [[0]]
    (home / "MANIFEST.json").unlink()
    for _ in range(3):
        assert not served.refresh()
    assert served.failed_refreshes == 2
    assert served.index.search(points[:1], 1)[1].tolist() == [[0]]
    (home / "MANIFEST.json").write_bytes(whole)
    with Index.open(home) as writer:
        writer.add(points[100:])
    assert served.refresh()
    assert (len(served.index), served.refreshes) == (500, 1)


def test_a_mistake_with_one_index_keeps_no_other_from_its_new_version(home, points, monkeypatch):
    other = home.parent / "other"
    Index.open(home).save(other)
    indexes, opened = open_indexes({"index": home, "other": other}), Index.open
    for path in (home, other):
        with opened(path) as writer:
            writer.add(points[100:])

    def forgetful(path):
        if path == home:
            raise MemoryError
        return opened(path)

    monkeypatch.setattr(Index, "open", forgetful)
    for one in indexes.values():
        one.refresh()
    assert (len(indexes["index"].index), len(indexes["other"].index)) == (100, 500)


def test_an_empty_index_can_be_served_and_filled(points, tmp_path):
    with Index.create(tmp_path / "index", LSH(16, random_state=0).fit(points)) as writer:
        served = ServedIndex("index", tmp_path / "index")
        served.warm()
        writer.add(points)
        assert served.refresh()
    assert len(served.index) == len(points)


def test_what_cannot_be_served_is_reported(home, tmp_path):
    with pytest.raises(DataError, match="there is nothing to serve"):
        open_indexes({})
    with pytest.raises(DataError, match="the name of an index must be"):
        open_indexes({"../up": home})
    with pytest.raises(StorageError, match="there is no index"):
        open_indexes({"index": tmp_path / "nowhere"})
    (home / "MANIFEST.json").write_text("{}")
    with pytest.raises(FormatError, match=r"MANIFEST\.json"):
        open_indexes({"index": home})


def test_names_of_indexes(tmp_path):
    found = named_paths([str(tmp_path / "a"), f"b={tmp_path / 'a'}"])
    assert {name: path.name for name, path in found.items()} == {"a": "a", "b": "a"}
    assert named_paths([f"{tmp_path}/odd=name"])["odd=name"].name == "odd=name"
    with pytest.raises(DataError, match="two indexes cannot have one name, got 'a'"):
        named_paths(["a", str(tmp_path / "a")])


def test_a_write_is_not_undone_by_a_version_that_was_opened_before_it(points, tmp_path):
    with Index.create(tmp_path / "index", LSH(16, random_state=0).fit(points)) as index:
        index.add(points[:10])

    class WrittenWhileItWarms(ServedIndex):
        written = False

        def warm(self, index=None):
            if not self.written:
                self.written = True
                with self.writing() as one:
                    one.add(points[20:30])

    served = WrittenWhileItWarms("points", tmp_path / "index")
    with Index.open(tmp_path / "index") as other:
        other.add(points[10:20])
    assert not served.refresh()  # which opens the version of the other, and finds that a write was faster
    assert len(served.index) == 30
    assert not served.refresh()  # the version of its own write is not opened again


def test_an_empty_index_is_warmed_up_after_its_first_write(points, tmp_path, monkeypatch):
    warmed = []
    monkeypatch.setattr(served, "warm_up", lambda index, _: warmed.append(len(index)))
    Index.create(tmp_path / "index", LSH(16, random_state=0).fit(points)).close()
    empty = ServedIndex("points", tmp_path / "index")
    empty.warm()
    assert warmed == []
    with empty.writing() as index:
        index.add(points)
    empty.refresh()
    assert warmed == [len(points)]


@pytest.mark.parametrize("metric", ["cosine", "inner_product"])
def test_an_index_by_another_metric_is_served_as_the_library_searches_it(points, metric):
    index = Index.from_vectors(points, LSH(16, random_state=0), metric=metric)
    limits = Limits(request_seconds=600)
    with serving({"points": index}, limits=limits) as address, Client(address, timeout=600) as client:
        listed = client.indexes()[0]
        assert (listed["metric"], listed["features"]) == (metric, WIDTH)
        for found, expected in zip(client.search(points[:3], 4), index.search(points[:3], 4), strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(client.search(ids=[2], k=4)[1], index.search(points[2:3], 4)[1])
        assert len(client.encode(points[:3])) == 3

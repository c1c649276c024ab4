"""An index that makes its own inverted lists as it grows: what it finds, what it stores, and what a crash leaves."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from autojacobin import (
    ITQ,
    LSH,
    BinaryAutoencoder,
    DataError,
    Index,
    Metric,
    PartitionedAutoencoder,
    PartitionedHasher,
    SphericalHashing,
)
from autojacobin.cli.program import app
from autojacobin.errors import FormatError, StorageError
from autojacobin.evaluation import ground_truth
from autojacobin.hashers import OwnCodes
from autojacobin.index import growth, segment
from autojacobin.index.growth import best_copies
from autojacobin.index.repair import repair
from autojacobin.search.kmeans import kmeans
from tests.index.faults import Crash, Faults
from tests.index.index_model import contents

K = 5
LIST_FILES = {"blocks", "offsets", "bounds", "order"}


def points(n, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    surface = np.random.default_rng(99).normal(size=(3, 8))
    return (rng.normal(size=(n, 3)) @ surface + 0.1 * rng.normal(size=(n, 8)) + shift).astype(np.float32)


WITH_LISTS = {BinaryAutoencoder: PartitionedAutoencoder, ITQ: PartitionedHasher}


@pytest.fixture(scope="module", params=["auto-encoder", "signs"])
def hasher(request):
    if request.param == "signs":
        return ITQ(8, random_state=0).fit(points(300, 1))
    return BinaryAutoencoder(12, n_iterations=3, random_state=0).fit(points(300, 1))


@pytest.fixture(autouse=True)
def small_lists(monkeypatch):
    """Lists from 200 vectors on, two for each vector if it pays at all, in files from the first vector on."""
    monkeypatch.setattr(growth, "best_copies", lambda centres, vectors: 2)
    monkeypatch.setattr(growth, "_FEWEST_VECTORS", 200)
    monkeypatch.setattr(segment, "_FEWEST_IN_LISTS", 1)


def is_exact(index, base):
    queries = points(20, 2)
    ids = index.search(queries, K, recall=1)[1]
    return np.array_equal(ids, ground_truth(base, queries, K))


def test_a_small_index_has_no_lists_and_a_growing_one_gets_more(hasher, tmp_path):
    base = points(4000)
    with Index.create(tmp_path / "index", hasher, partitions="auto") as index:
        lists = []
        for start, end in ((0, 150), (150, 300), (300, 1200), (1200, 1300), (1300, 4000)):
            index.add(base[start:end])
            lists.append(index.info()["lists"])
            assert is_exact(index, base[:end])
        assert lists == [None, 64, 128, 128, 256]
        made = index._state.hasher
        assert isinstance(made, WITH_LISTS[type(hasher)])
        assert made.n_code_bits == hasher.n_bits
        assert made.n_bits == made.copies * (hasher.n_bits + 8)
        index.verify()
    with Index.open(tmp_path / "index") as index:
        assert index._state.partitions == "auto"
        assert is_exact(index, base)
        assert index.search(points(20, 2), K, recall=0.9)[1].shape == (20, K)
        assert set(index._state.segments[0].files) >= LIST_FILES


def test_an_index_learns_from_the_queries_of_its_user_again_when_it_makes_lists(hasher):
    queries = points(120, 9)
    index = Index(hasher, partitions="auto")
    index.add(points(2500))
    index.learn(queries)
    before = index.info()["lists"]
    index.add(points(9000, 4))
    assert index.info()["lists"] > before
    assert np.array_equal(index._state.knowledge.own_queries, queries)
    assert index._state.knowledge.n == 11_500


@pytest.mark.parametrize(("topics", "copies"), [(1, 1), (3, 2)])
def test_two_lists_are_taken_where_vectors_belong_to_several_groups(topics, copies):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, 64))
    X = sum(centres[rng.integers(0, 60, 8000)] for _ in range(topics)) + 0.5 * rng.normal(size=(8000, 64))
    assert best_copies(kmeans(X, 250, random_state=0), X) == copies
    assert best_copies(kmeans(X, 50, random_state=0), X) == 1  # too few lists to tell


@pytest.mark.parametrize(("partitions", "copies"), [(16, 2), ("auto", 1)])
def test_auto_chooses_the_copies_again_and_a_number_of_lists_keeps_them(partitions, copies, monkeypatch):
    monkeypatch.setattr(growth, "best_copies", lambda centres, vectors: 1)
    given = PartitionedAutoencoder(2 * (12 + 3), n_lists=8, copies=2, n_iterations=2, random_state=0).fit(points(600))
    index = Index(given, partitions=partitions)
    index.add(points(1200))
    assert index.info()["lists"] > 8
    assert index._state.hasher.copies == copies
    assert index._state.hasher.n_code_bits == 12


def test_a_stream_makes_lists_when_it_ends(hasher):
    base = points(600)
    index = Index(hasher, partitions=16)
    index.add(iter([base[:200], base[200:400]]))
    assert index.info()["lists"] is None  # fewer than 32 vectors for each
    index.add(iter([base[400:]]))
    assert index.info()["lists"] == 16
    assert is_exact(index, base)


def test_codes_that_are_not_of_residuals_stay_as_they_are():
    plain = ITQ(8, random_state=0).fit(points(300, 1))
    without, within = Index(plain), Index(plain, partitions="auto")
    for start, end in ((0, 150), (150, 300), (300, 1500)):
        for index in (without, within):
            index.add(points(1500)[start:end])
    assert within.info()["lists"] == 128
    assert within.codes(within.ids) == without.codes(without.ids)
    for distance in ("asymmetric", "hamming"):
        found, expected = (
            index.search(points(20, 2), 30, distance=distance, rerank=False, **options)
            for index, options in ((within, {"probes": "all"}), (without, {}))
        )
        assert all(map(np.array_equal, found, expected))


def test_names_of_features_are_still_compared_when_there_are_lists(hasher):
    pandas = pytest.importorskip("pandas")
    names = [f"column {number}" for number in range(8)]
    named = clone(hasher).fit(pandas.DataFrame(points(300, 1), columns=names))
    index = Index(named, partitions=4)
    for start, end in ((0, 50), (50, 400)):
        index.add(pandas.DataFrame(points(400)[start:end], columns=names))
    assert index.info()["lists"] == 4
    asked = pandas.DataFrame(points(3, 2), columns=names)
    assert np.array_equal(index.search(asked, K, recall=1)[1], ground_truth(points(400), points(3, 2), K))
    with pytest.raises(ValueError, match="feature names"):
        index.search(asked[names[::-1]], K)


def test_ids_and_removals_survive_the_lists(hasher):
    base, ids = points(150), np.random.default_rng(0).permutation(500)[:150]
    index = Index(hasher, partitions="auto")
    index.add(base, ids)
    index.remove(ids[:30])
    index.add(points(200, 5), np.arange(1000, 1200))
    assert index.info()["lists"] == 64
    assert np.array_equal(index.ids, np.sort(np.concatenate([ids[30:], np.arange(1000, 1200)])))
    assert np.array_equal(index.vectors(ids[30:]), base[30:])


def test_vectors_of_several_types_are_kept_as_they_came(hasher):
    bytes_, floats = np.abs(points(150) * 10).astype(np.uint8), points(150, 3)
    index = Index(hasher, partitions="auto")
    index.add(bytes_)
    index.add(floats)
    assert index.info()["lists"] is not None
    assert {one.vectors.dtype for one in index._state.segments} == {np.dtype(np.uint8), np.dtype(np.float32)}
    assert np.array_equal(index.vectors(np.arange(150)), bytes_)


def test_lists_in_files_answer_as_lists_made_at_the_search(hasher, tmp_path, monkeypatch):
    queries = points(30, 2)
    with Index.create(tmp_path / "files", hasher, partitions=8) as index:
        index.add(points(500))
        expected = index.search(queries, K, probes=2, rerank=False)
    stored = {file.name.split("-")[0] for file in (tmp_path / "files").iterdir()}
    assert stored >= LIST_FILES
    monkeypatch.setattr(segment, "_FEWEST_IN_LISTS", 10**6)
    without = Index(index._state.hasher)
    without.add(points(500))
    assert not without._state.segments[0].arrays.keys() & LIST_FILES
    for got, wanted in zip(without.search(queries, K, probes=2, rerank=False), expected, strict=True):
        assert np.array_equal(got, wanted)


def test_compact_makes_lists_anew_where_the_vectors_have_drifted(hasher):
    index = Index(hasher, partitions=8)
    index.add(points(300))
    learned = index._state.hasher
    index.compact()
    assert index._state.hasher is learned  # nothing has drifted
    index.add(points(900, 3, shift=40.0))
    index.compact()
    assert index._state.hasher is not learned
    assert len(index._state.segments) == 1
    everything = np.concatenate([points(300), points(900, 3, shift=40.0)])
    assert is_exact(index, everything)


def test_compact_makes_far_fewer_lists_of_what_is_left(hasher):
    index = Index(hasher, partitions="auto")
    index.add(points(20_000))
    assert index.info()["lists"] == 512
    index.remove(np.arange(700, 20_000))
    index.compact()
    assert index.info()["lists"] == 128
    assert is_exact(index, points(20_000)[:700])


@pytest.mark.parametrize("with_lists", WITH_LISTS.values())
def test_lists_of_the_user_stay_as_they_are(with_lists, tmp_path):
    if with_lists is PartitionedHasher:
        fitted = PartitionedHasher(ITQ(8, random_state=0), n_lists=8, random_state=0).fit(points(300))
    else:
        fitted = PartitionedAutoencoder(16, n_lists=8, n_iterations=3, random_state=0).fit(points(300))
    with Index.create(tmp_path / "index", fitted) as index:
        index.add(points(3000))
        index.add(points(3000, 3, shift=40.0))
        index.compact()
        assert np.array_equal(index._state.hasher.centres_, fitted.centres_)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda hasher: Index(hasher, partitions="many"), "a number of lists, 'auto' or None, got 'many'"),
        (lambda hasher: Index(hasher, partitions=0), "partitions must be an integer from 1"),
        (lambda hasher: Index(hasher, partitions=4, keep_vectors=False), "got partitions=4 with keep_vectors=False"),
        (
            lambda _: Index(SphericalHashing(4, random_state=0).fit(points(100)), partitions="auto"),
            "asymmetric or the Hamming distance, got codes of SphericalHashing",
        ),
        (lambda _: Index(OwnCodes(16), partitions=4), "lists are learned from vectors, .* got codes of OwnCodes"),
        (lambda _: Index.create("new", n_bits=16, partitions=4), "got codes of OwnCodes"),
    ],
)
def test_an_index_that_cannot_have_lists_is_refused(hasher, make, message):
    with pytest.raises((DataError, TypeError), match=message):
        make(hasher)


def test_vectors_that_do_not_fit_make_no_lists(hasher):
    index = Index(hasher, partitions="auto")
    wrong = points(400)
    wrong[17, 3] = np.nan
    with pytest.raises(DataError, match="NaN"):
        index.add(wrong)
    with pytest.raises(DataError, match="features"):
        index.add(points(400)[:, :5])
    assert len(index) == 0


# Storage: the same faults as for an index without lists


CHANGES = [
    lambda index: index.add(points(30, 4)),  # makes the lists
    lambda index: index.remove(index.ids[::3]),
    lambda index: index.compact(),
    lambda index: index.add(points(90, 5, shift=60.0)),
    lambda index: index.compact(),  # makes them anew
]


@pytest.fixture
def prepared(hasher, tmp_path):
    path = tmp_path / "original"
    with Index.create(path, hasher, partitions=2) as index:
        index.add(points(50))
    working = Path(shutil.copytree(path, tmp_path / "working"))
    faults, states = Faults(), []
    with opened(working, faults) as index:
        states.append(contents(index))
        for change in CHANGES:
            change(index)
            states.append(contents(index))
        assert index.info()["lists"] == 2
    return path, states, faults.count


def opened(path, faults):
    index = Index.open(path)
    index._folder = faults.folder(path)
    return index


RARE = ["torn crash", "power cut, undoing renames"]


def state_on_disk(path):
    with Index.open(path) as index:
        index.verify()
        if index.info()["lists"]:
            index.search(points(3, 8), 3, recall=1)
        return contents(index)


@pytest.mark.parametrize(
    "fault", ["crash", "power cut, undoing all", *(pytest.param(fault, marks=pytest.mark.rare) for fault in RARE)]
)
def test_a_crash_while_lists_are_made_leaves_a_committed_state(prepared, tmp_path, fault, instants):
    original, states, count = prepared
    for at in instants(count, 2):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        index, done = opened(path, Faults(at, fault)), 0
        with pytest.raises(Crash):  # noqa: PT012
            for change in CHANGES:
                change(index)
                done += 1
        index._folder.lock.release()
        assert state_on_disk(path) in (states[done], states[done + 1]), at
        with Index.open(path) as index:
            index.add(points(1, 9))
            named = index._state.manifest.names()
        assert {entry.name for entry in path.iterdir()} - {"LOCK", "MANIFEST.json"} == named
        shutil.rmtree(path)


@pytest.mark.parametrize("fault", ["error", pytest.param("no space", marks=pytest.mark.rare)])
def test_an_error_while_lists_are_made_changes_nothing(prepared, tmp_path, fault, instants):
    original, states, count = prepared
    for at in instants(count, 2):
        path = Path(shutil.copytree(original, tmp_path / str(at)))
        with opened(path, Faults(at, fault)) as index:
            for done, change in enumerate(CHANGES):
                try:
                    change(index)
                except StorageError as error:
                    assert "nothing was changed" in str(error)
                    assert contents(index) == states[done]
                    change(index)  # the fault was there once
                assert contents(index) == states[done + 1]
        assert state_on_disk(path) == states[-1]
        shutil.rmtree(path)


@pytest.mark.parametrize("kind", sorted(LIST_FILES))
def test_damaged_lists_are_an_error_and_can_be_repaired(hasher, tmp_path, kind):
    path = tmp_path / "index"
    with Index.create(path, hasher, partitions=4) as index:
        index.add(points(400))
    (file,) = path.glob(f"{kind}-*")
    content = bytearray(file.read_bytes())
    content[4096 + 9] ^= 64
    file.write_bytes(content)
    with Index.open(path) as index, pytest.raises(FormatError, match=file.name):
        index.search(points(3), 3, probes="all")
    with Index.open(path) as index, pytest.raises(FormatError, match=file.name):
        index.verify()
    report = repair(path, tmp_path / "repaired")
    assert (report.saved, report.lost) == (400, 0)
    with Index.open(tmp_path / "repaired") as index:
        assert is_exact(index, points(400))
        assert index._state.partitions == 4


@pytest.mark.parametrize("kind", ["bounds", "order"])
def test_lists_that_lead_out_of_their_arrays_are_refused_without_checksums_too(hasher, tmp_path, kind):
    path = tmp_path / "index"
    with Index.create(path, hasher, partitions=4) as index:
        index.add(points(400))
    (file,) = path.glob(f"{kind}-*")
    content = bytearray(file.read_bytes())
    content[4096 + 8 : 4096 + 12] = b"\xff\xff\xff\x7f"
    file.write_bytes(content)
    with Index.open(path, check=False) as index, pytest.raises(FormatError, match=file.name):
        index.search(points(3), 3, probes="all")


def test_another_process_that_reads_sees_the_lists_after_refresh(hasher, tmp_path):
    with Index.create(tmp_path / "index", hasher, partitions=4) as writer:
        writer.add(points(100))
        with Index.open(tmp_path / "index") as reader:
            writer.add(points(300, 6))
            assert reader.info()["lists"] is None
            assert is_exact(reader, points(100))
            reader.refresh()
            assert reader.info()["lists"] == 4
            assert len(reader) == 400


def test_a_hasher_with_a_callback_reports_the_lists_while_they_are_made(hasher):
    stages = []
    reporting = copy.copy(hasher)
    reporting.__dict__["progress"] = lambda stage, *_: stages.append(stage)
    index = Index(reporting, partitions=4)
    index.add(points(400))
    assert "partitioning" in stages


def test_the_command_line_makes_lists(hasher, tmp_path):
    hasher.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "base.npy", points(400))
    arguments = ["index", "build", "model.safetensors", "base.npy", "made", "--partitions", "4", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["lists"] == 4
    with Index.open(tmp_path / "made") as index:
        assert is_exact(index, points(400))


@pytest.mark.parametrize("hasher", ["auto-encoder"], indirect=True)
def test_the_command_line_builds_an_index_by_cosine_and_a_cluster_searches_its_lists(hasher, tmp_path):
    Metric("cosine").fit(clone(hasher), points(300, 1)).save(tmp_path / "model.safetensors")
    np.save(tmp_path / "base.npy", points(400))
    np.save(tmp_path / "queries.npy", points(5, 2))
    build = "index build model.safetensors base.npy made --partitions 4"
    search = "cluster search made queries.npy found.npz -k 3 --probes 4 --candidates 400 --cluster local:1"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for line in (build, search):
            result = CliRunner().invoke(app, line.split())
            assert result.exit_code == 0, result.output
    base, queries = (X / np.linalg.norm(X, axis=1, keepdims=True) for X in (points(400), points(5, 2)))
    expected = np.argsort(-(queries @ base.T), axis=1)[:, :3]
    with np.load(tmp_path / "found.npz") as found:
        assert np.array_equal(found["ids"], expected)
        assert np.allclose(found["distances"], np.take_along_axis(queries @ base.T, expected, axis=1), atol=1e-5)


def test_a_stream_that_was_added_is_not_refused_because_no_lists_can_be_made(tmp_path, monkeypatch, caplog):
    X = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    with Index.create(tmp_path / "index", ITQ(8, random_state=0).fit(X), partitions=20) as index:

        def fail(*_, **__):
            raise StorageError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr("autojacobin.index.growth.grown_hasher", fail)
            index.add(iter([X[:2000]]))
        assert "no lists could be made of them yet: the disk is full" in caplog.text
        assert len(index) == 2000
        index.add(iter([X[2000:]]))
        assert index.info()["lists"] == 20
        assert len(index) == 3000


@pytest.mark.parametrize("wrong", [{"ids": [1, 2]}, {"ids": list("ab")}, {"payload": {"other": np.zeros(3000)}}])
def test_vectors_that_are_refused_make_no_lists(wrong):
    X = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    index = Index(ITQ(8, random_state=0).fit(X), partitions=20)
    index.add(X[:3], payload={"row": np.arange(3)})
    with pytest.raises(DataError):
        index.add(X, **wrong)
    assert index.info()["lists"] is None


@pytest.mark.parametrize(("make", "partitions"), [(LSH, 4), (BinaryAutoencoder, None)])
@pytest.mark.filterwarnings("error")
def test_an_index_of_a_data_frame_gives_no_warning_about_names(make, partitions, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(points(3000), columns=[f"column {number}" for number in range(8)])
    with Index.create(tmp_path / "index", make(8, random_state=0).fit(frame[:500]), partitions=partitions) as index:
        index.add(frame[:2500])
        index.add(points(100, 1))  # an array has no names to compare
        for _ in range(2):
            index.plan(5, recall=0.8)
            index.learn(frame[2900:])
            for queries in (frame[2990:], points(3000)[2990:]):
                index.search(queries, 5)
                index.search(queries, 5, recall=0.8, among=[list(range(1000)), list(range(500))] * 5)
                index.search(queries[:1], 5, among=list(range(20)))
            index.compact()
            index.refresh()
    repair(tmp_path / "index", tmp_path / "repaired")
    with Index.open(tmp_path / "repaired") as repaired:
        repaired.search(points(3, 2), 5, probes=None, recall=0.8)
        assert list(repaired.hasher.feature_names_in_) == list(frame.columns)
        with pytest.raises(ValueError, match="feature names"):
            repaired.search(frame[frame.columns[::-1]][:3], 5)


def test_vectors_alone_make_an_index(caplog, tmp_path, capsys):
    """Without a hasher: the bits are chosen and reported, and lists are made where they pay."""
    base, names = points(2_600), [f"v{number}" for number in range(2_600)]
    with caplog.at_level("INFO", "autojacobin.index"):
        made = Index.from_vectors(base, path=tmp_path / "index", ids=names, metric="cosine", verbose=True)
    with made as index:
        assert repr(index).startswith(f"Index(2600 codes of {index.hasher.n_bits} bits by PartitionedAutoencoder")
        assert index.info()["lists"] == growth.wanted_lists("auto", 2_600)
        chosen = int(index.hasher.n_code_bits)
        assert 16 <= chosen <= 32
        assert f"chose BinaryAutoencoder({chosen}): 100 candidates hold" in caplog.text
        assert f"chose BinaryAutoencoder({chosen})" in capsys.readouterr().err
        similarities, ids = index.search(base[:3], 1, recall=1)
        assert ids.ravel().tolist() == ["v0", "v1", "v2"]
        assert similarities == pytest.approx(np.ones((3, 1)))


def test_codes_alone_of_vectors_alone_have_no_lists():
    index = Index.from_vectors(points(300), keep_vectors=False)
    assert (index.info()["lists"], index.hasher.n_bits) == (None, 16)
    with pytest.raises(DataError, match="hasher must be a hasher, got 64"):
        Index.from_vectors(points(300), 64)


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
def test_a_command_makes_lists_of_vectors_alone_at_once(metric, tmp_path, monkeypatch):
    """All vectors are encoded once: with the codes of the lists."""
    encoded = []
    encode = growth.encode_again
    monkeypatch.setattr("autojacobin.index.growth.encode_again", lambda *given: encoded.append(given) or encode(*given))
    monkeypatch.chdir(tmp_path)
    np.save("base.npy", points(600))
    np.save("more.npy", points(100, 1))
    result = CliRunner().invoke(app, ["index", "build", "base.npy", "more.npy", "made", "--metric", metric, "--json"])
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert (made["vectors"], made["lists"]) == (700, growth.wanted_lists("auto", 700))
    assert not encoded
    with Index.open("made") as index:
        assert index._state.partitions == "auto"
        assert isinstance(index.hasher, PartitionedAutoencoder)
        base = np.concatenate([points(600), points(100, 1)]).astype(np.float64)
        found = index.search(base[:5].astype(np.float32), 3, recall=1)[0]
        values = base[:5] @ base.T if metric == "inner_product" else -np.linalg.norm(base[:5, None] - base, axis=2)
        expected = -np.sort(-values, axis=1)[:, :3]
        np.testing.assert_allclose(found if metric == "inner_product" else -found, expected, atol=1e-3)

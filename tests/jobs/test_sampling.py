"""Drawing a sample out of many files, against the rows themselves."""

import glob
import gzip
import itertools
import os
import zipfile
from dataclasses import replace

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import AutoJacobinError, DataError
from autojacobin.datasets import write_vectors
from autojacobin.errors import FormatError, MissingExtraError, StorageError
from autojacobin.jobs.inputs import draw_sample, open_piece, survey
from tests.engines.printed import printed
from tests.jobs.cut_files import cut_into_files

ENDINGS = ("npy", "fvecs", "fbin", "parquet", "csv", "npz", "hdf5", "npy.gz")
numbers = itertools.count()


def numbered(n, width=3):
    return np.arange(n * width, dtype=np.float32).reshape(n, width)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sampling")


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@given(cuts=st.lists(st.integers(1, 59), max_size=6), n=st.integers(1, 60), seed=st.integers(0, 3))
def test_a_sample_depends_on_the_rows_and_not_on_the_files_they_are_in(folder, cuts, n, seed):
    X = numbered(60)
    pattern = cut_into_files(folder / str(next(numbers)), X, sorted(cuts), ENDINGS)
    whole = cut_into_files(folder / str(next(numbers)), X, [])
    drawn = draw_sample(pattern, n, random_state=seed)
    assert np.array_equal(drawn, draw_sample(whole, n, random_state=seed))
    rows = drawn[:, 0] / 3
    assert np.array_equal(drawn, X[rows.astype(int)])
    assert np.all(np.diff(rows) > 0)


def test_every_row_has_the_same_chance(tmp_path):
    pattern = cut_into_files(tmp_path, numbered(50), [1, 4, 30], ("fvecs", "npy"))
    draws = 150
    times = sum(np.bincount((draw_sample(pattern, 10, random_state=seed)[:, 0] / 3).astype(int), minlength=50)
                for seed in range(draws))  # fmt: skip
    deviation = np.sqrt(draws * 0.2 * 0.8)
    assert np.abs(times - draws * 0.2).max() < 4.5 * deviation
    assert 0.6 < (times - draws * 0.2).std() / deviation < 1.4


def test_all_rows_can_be_drawn_and_no_more(tmp_path):
    X = numbered(40)
    pattern = cut_into_files(tmp_path, X, [7, 8])
    assert np.array_equal(draw_sample(pattern, 40), X)
    with pytest.raises(DataError, match="n must be an integer from 1 to 40, .* vectors in the files, got 41"):
        draw_sample(pattern, 41)
    with pytest.raises(DataError, match="got 0"):
        draw_sample(pattern, 0)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [(["u1", "f4"], "f4"), (["f4", "f8"], "f8"), (["u1"], "f4"), (["i8", "f4"], "f8"), (["f2"], "f4")],
)
def test_the_type_holds_the_numbers_of_all_files(tmp_path, dtypes, expected):
    parts = [np.array([[number, 200]], dtype=dtype) for number, dtype in enumerate(dtypes)]
    for number, part in enumerate(parts):
        np.save(tmp_path / f"{number}.npy", part)
    sample = draw_sample(tmp_path / "*.npy", len(parts))
    assert sample.dtype == np.dtype(expected)
    assert np.array_equal(sample, np.concatenate(parts))


@pytest.mark.parametrize(
    "ending", ["npy", "fvecs", "bvecs", "ivecs", "fbin", "u8bin", "i8bin", "parquet", "npz", "csv"]
)
def test_remote_files_give_the_sample_of_local_ones(tmp_path, memory, ending):
    X = numbered(40) % 100
    pattern = cut_into_files(tmp_path, X, [3, 20], (ending,))
    for path in tmp_path.iterdir():
        memory.put_file(str(path), f"/set/{path.name}")
    assert [file.stop for file in survey("memory://set/*").files] == [3, 17, 20]
    assert np.array_equal(draw_sample("memory://set/*", 12), draw_sample(pattern, 12))


@pytest.mark.parametrize("ending", ["npy", "fvecs", "fbin"])
def test_of_flat_remote_files_only_the_rows_between_the_drawn_ones_travel(memory, tmp_path, ending, monkeypatch):
    X = numbered(100_000, 8)
    write_vectors(tmp_path / f"x.{ending}", X)
    memory.put_file(str(tmp_path / f"x.{ending}"), f"/x.{ending}")
    read, read_block = [], type(memory).read_block

    def watched(self, path, offset, length, delimiter=None):
        read.append(length)
        return read_block(self, path, offset, length, delimiter)

    monkeypatch.setattr(type(memory), "read_block", watched)
    (file,) = survey(f"memory://x.{ending}").files
    with open_piece(replace(file, start=50_000, stop=50_100)) as rows:
        assert np.array_equal(rows(slice(50_000, 50_100)), X[50_000:50_100])
    assert sum(read) < 200_000 < X.nbytes


def test_files_within_archives_are_files_too(tmp_path):
    X = numbered(30)
    cut_into_files(tmp_path / "in", X, [10, 20], ("npy", "fbin"))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in sorted((tmp_path / "in").iterdir()):
            archive.write(path, path.name)
    assert np.array_equal(draw_sample(f"zip://part-*::{tmp_path}/all.zip", 30), X)


def test_patterns_overlap_and_file_addresses_are_paths(tmp_path):
    X = numbered(30)
    pattern = cut_into_files(tmp_path, X, [10, 20])
    again = [pattern, tmp_path / "part-001.npy", f"file://{tmp_path}/part-00[02].npy"]
    assert np.array_equal(draw_sample(again, 30), X)


def test_a_name_with_brackets_is_a_name(tmp_path):
    np.save(tmp_path / "a[1].npy", numbered(5))
    assert len(draw_sample(tmp_path / "a[1].npy", 5)) == 5


def numbered_files(folder, paths):
    """Write a file of one vector to each path; the vector says which."""
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / path, np.full((1, 3), number, dtype=np.float32))


def test_links_between_folders_count_no_file_twice(tmp_path):
    paths = ["data/a.npy", "data/b/c.npy", "data/b/d/e.npy", "data/.hidden/f.npy", "elsewhere/g.npy"]
    numbered_files(tmp_path, paths)
    for link, target in (
        ("data/up", "."), ("data/again", "."), ("data/b/d/top", "../.."), ("data/0", "b"),
        ("data/there", "../elsewhere"), ("data/nowhere", "missing"),
    ):  # fmt: skip
        os.symlink(target, tmp_path / link, target_is_directory=True)
    expected = ["data/a.npy", "data/b/c.npy", "data/b/d/e.npy", "data/there/g.npy"]
    for pattern in (tmp_path / "data" / "**" / "*.npy", tmp_path / "data" / "**" / "**" / "*.npy"):
        assert [os.path.relpath(file.path, tmp_path) for file in survey(pattern).files] == expected
    (file,) = survey(tmp_path / "dat?" / "**" / "d" / "*.npy").files
    assert file.path == str(tmp_path / "data/b/d/e.npy")


@given(st.sets(st.lists(st.sampled_from(["a", "b", "[c]"]), min_size=1, max_size=4).map("/".join), min_size=1))
def test_two_asterisks_find_what_glob_finds_where_there_are_no_links(folder, names):
    home = folder / str(next(numbers))
    numbered_files(home, [f"{name}/x.npy" for name in names])
    for pattern in ("**/*.npy", "a/**/*.npy", "**/b/*.npy", "**/a/**/x.npy", "*/**/x.npy", "**/**/x.npy"):
        given = os.path.join(glob.escape(str(home)), pattern)
        expected = sorted(set(glob.glob(given, recursive=True)))
        if expected:
            assert [file.path for file in survey(given).files] == expected
        else:
            with pytest.raises(StorageError, match="no file matches"):
                survey(given)


def wrong_width(folder):
    np.save(folder / "a.npy", numbered(5))
    np.save(folder / "b.npy", numbered(5, 4))
    return folder / "*.npy", DataError, "one dimension, got 4 in .*b.npy and 3 in .*a.npy"


def not_a_number(folder):
    X = numbered(5)
    X[3, 1] = np.nan
    np.save(folder / "a.npy", numbered(5))
    np.save(folder / "bad.npy", X)
    return folder / "*.npy", DataError, "rows 0 to 4 of .*bad.npy: Input X contains NaN in row 3"


def cut_off(folder):
    write_vectors(folder / "a.fvecs", numbered(5))
    content = (folder / "a.fvecs").read_bytes()
    (folder / "cut.fvecs").write_bytes(content[:-3])
    return folder / "*.fvecs", FormatError, "cut.fvecs is damaged"


def packed_badly(folder):
    (folder / "a.npy.gz").write_bytes(gzip.compress(b"no array")[:-4])
    return folder / "a.npy.gz", FormatError, "a.npy.gz"


@pytest.mark.parametrize("make", [wrong_width, not_a_number, cut_off, packed_badly])
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path, make):
    pattern, error, message = make(tmp_path)
    with pytest.raises(error, match=message):
        draw_sample(pattern, 10)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([], "at least one path or pattern"),
        ("nowhere/*.npy", "no file matches nowhere"),
        ("nowhere.npy", "there is no such file"),
        ("memory://nowhere/*.npy", "no file matches"),
        ("memory://nowhere.npy", "cannot read memory://.*nowhere.npy: there is no such file"),
        ("nonsense://bucket/x.npy", "cannot read nonsense://"),
    ],
)
def test_what_is_not_there_is_reported(patterns, message):
    with pytest.raises(AutoJacobinError, match=message) as caught:
        draw_sample(patterns, 1)
    assert isinstance(caught.value, DataError | StorageError)


@pytest.mark.parametrize("ending", ["fvecs", "npy", "fbin"])
def test_damage_of_a_remote_file_is_reported_with_its_address(tmp_path, memory, ending):
    write_vectors(tmp_path / f"x.{ending}", numbered(50))
    content = (tmp_path / f"x.{ending}").read_bytes()
    memory.pipe_file(f"/cut.{ending}", content[:-3])
    with pytest.raises(FormatError, match=f"memory:///?cut.{ending} .*is damaged"):
        draw_sample(f"memory://cut.{ending}", 5)
    if ending == "fvecs":
        changed = bytearray(content)
        changed[16 * 20] = 9  # the dimension of row 20
        memory.pipe_file("/changed.fvecs", bytes(changed))
        with pytest.raises(FormatError, match=r"memory:///?changed.fvecs .*dimension 9 in row"):
            draw_sample("memory://changed.fvecs", 50)


def test_without_fsspec_an_address_names_the_line_to_install_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'autojacobin\[cluster\]'"):
        draw_sample("s3://bucket/*.npy", 5)


@pytest.mark.parametrize(
    "address",
    [
        "ftp://me:sesame@127.0.0.1:9/x.npy",
        "ftp://me:ses/same@127.0.0.1:9/x.npy",
        "ftp://me:ses@same@127.0.0.1:9/x.npy",
        "ftp://me:ses#same@127.0.0.1:9/x.npy",
        "ftp://me:ses?same@127.0.0.1:9/x.npy",
        "no://me:sesame@host/x.npy",
        "no://host/x.npy?sig=ses=same",
        "memory://host/x.npy?token=ses@same",
        "memory://host/missing.npy?X-Amz-Signature=sesame",
    ],
)
def test_passwords_and_signatures_of_addresses_are_shown_nowhere(address):
    with pytest.raises(StorageError, match=r"(cannot read|no file matches) (ftp|no|memory)://") as caught:
        draw_sample(address, 3)
    assert "same" not in printed(caught.value)


@pytest.mark.parametrize(
    ("path", "pattern", "shown"),
    [
        ("/damaged.npy?sig=sesame", "damaged.npy[?]sig=sesame", r"/?(damaged\.npy)?"),
        ("/me:open/sesame@box.npy", "me:open/sesame@box.npy", r"box\.npy"),
        ("/me:open/sesame@box", "me:open/sesame@box", "box"),
    ],
)
def test_a_damaged_file_is_named_without_the_secrets_of_its_address(memory, path, pattern, shown):
    memory.pipe_file(path, b"\x93NUMPY and nothing more")
    with pytest.raises(FormatError, match=rf"memory://{shown} .*damaged") as caught:
        draw_sample(f"memory://{pattern}", 3)
    assert "sesame" not in printed(caught.value)


def test_the_format_of_a_signed_address_is_in_the_name_before_the_signature(memory, tmp_path):
    write_vectors(tmp_path / "a.fvecs", numbered(9))
    memory.pipe_file("/a.fvecs?sig=sesame", (tmp_path / "a.fvecs").read_bytes())
    assert len(draw_sample("memory://a.fvecs[?]sig=sesame", 9)) == 9


def test_what_is_written_into_logs_has_no_password(memory, tmp_path):
    write_vectors(tmp_path / "a.npy", numbered(9))
    memory.pipe_file("/me:sesame@box/a.npy", (tmp_path / "a.npy").read_bytes())
    inputs = survey("memory://me:sesame@box/a.npy")
    (chunk,) = inputs.chunks()
    assert str(chunk) == str(inputs.files[0]) == "memory://box"
    for shown in (inputs, chunk, *chunk.pieces):
        assert "sesame" not in repr(shown) + str(shown)


def test_a_seed_that_is_none_is_named(tmp_path):
    write_vectors(tmp_path / "a.npy", np.eye(5))
    for wrong in ("x", -1, 1.5):
        with pytest.raises(DataError, match="random_state must be None, an integer"):
            draw_sample(tmp_path / "a.npy", 3, random_state=wrong)


def test_progress_counts_files(tmp_path):
    reported = []
    draw_sample(cut_into_files(tmp_path, numbered(9), [3, 6]), 2, progress=lambda *what: reported.append(what))
    assert reported == [("sampling", number, 3) for number in (1, 2, 3)]

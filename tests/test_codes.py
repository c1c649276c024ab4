"""Codes: packing, order, equality and files, against packing written out bit by bit."""

import pickle
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from autojacobin import Codes, DataError, FormatError
from autojacobin.errors import DataTypeError, StorageError

bit_matrices = st.tuples(st.integers(0, 6), st.integers(1, 520)).flatmap(
    lambda shape: hnp.arrays(np.uint8, shape, elements=st.integers(0, 1))
)


def packed_by_hand(bits):
    """The contract, literally: bit j is bit j % 8, least significant first, of byte j // 8."""
    packed = np.zeros((len(bits), -(-bits.shape[1] // 8)), dtype=np.uint8)
    for row, code in enumerate(bits):
        for j, bit in enumerate(code):
            packed[row, j // 8] |= int(bit) << (j % 8)
    return packed


@pytest.mark.parametrize("start", range(1, 521, 40))
def test_pack_and_unpack_are_inverse_for_every_length(start):
    rng = np.random.default_rng(start)
    for n_bits in range(start, min(start + 40, 521)):
        bits = rng.integers(0, 2, (5, n_bits), dtype=np.uint8)
        codes = Codes.from_bits(bits)
        assert codes.n_bits == n_bits
        assert np.array_equal(codes.packed, packed_by_hand(bits))
        assert np.array_equal(codes.to_bits(), bits)
        assert Codes(codes.packed, n_bits) == codes


@given(bit_matrices)
def test_signs_and_bits_say_the_same(bits):
    signs = Codes.from_bits(bits).to_signs()
    assert signs.dtype == np.int8
    assert np.array_equal(signs, 2 * bits.astype(int) - 1)
    assert Codes.from_bits(signs > 0) == Codes.from_bits(bits)


@given(st.integers(1, 520).flatmap(lambda n: hnp.arrays(np.uint8, (2, n), elements=st.integers(0, 1))))
def test_xor_popcount_counts_differing_bits_and_padding_never_counts(bits):
    left, right = Codes.from_bits(bits[:1]).packed, Codes.from_bits(bits[1:]).packed
    assert int(np.bitwise_count(left ^ right).sum()) == int((bits[0] != bits[1]).sum())
    ones = Codes.from_bits(np.ones_like(bits[:1])).packed
    assert int(np.bitwise_count(ones).sum()) == bits.shape[1]


@given(bit_matrices, st.data())
def test_rows_are_chosen_as_numpy_chooses_them(bits, data):
    codes = Codes.from_bits(bits)
    part = data.draw(st.slices(len(bits)))
    assert np.array_equal(codes[part].to_bits(), bits[part])
    mask = np.arange(len(bits)) % 2 == 0
    assert np.array_equal(codes[mask].to_bits(), bits[mask])
    numbers = np.arange(len(bits))[::-1]
    assert np.array_equal(codes[numbers].to_bits(), bits[numbers])
    for row in range(-len(bits), len(bits)):
        assert np.array_equal(codes[row].to_bits(), bits[row][np.newaxis])
    assert len(list(codes)) == len(codes) == len(bits)


def test_equality_is_by_content():
    codes = Codes.from_bits([[1, 0, 1]])
    assert codes == Codes.from_bits([[1, 0, 1]])
    assert codes != Codes.from_bits([[1, 0, 1, 0]])  # the same byte, another length
    assert codes != Codes.from_bits([[1, 1, 1]])
    assert codes != "codes"
    with pytest.raises(TypeError):
        hash(codes)


def test_concatenate_is_the_inverse_of_slicing():
    codes = Codes.from_bits(np.random.default_rng(0).integers(0, 2, (10, 13)))
    assert Codes.concatenate([codes[:3], codes[3:3], codes[3:]]) == codes
    with pytest.raises(DataError, match="must have one length"):
        Codes.concatenate([codes, Codes.from_bits([[1]])])
    assert Codes.concatenate(codes[row] for row in range(10)) == codes
    with pytest.raises(DataError, match="empty sequence"):
        Codes.concatenate([])
    with pytest.raises(DataError, match="only Codes can be concatenated, got ndarray"):
        Codes.concatenate([codes.packed])


def test_codes_are_values():
    packed = np.array([[1], [2]], dtype=np.uint8)
    codes = Codes(packed, 8)
    assert codes.packed.base is packed or np.shares_memory(codes.packed, packed)
    with pytest.raises(ValueError, match="read-only"):
        codes.packed[0, 0] = 3
    assert pickle.loads(pickle.dumps(codes)) == codes
    assert repr(codes) == "Codes(2 codes of 8 bits)"
    assert repr(Codes.from_bits([[1]])) == "Codes(1 code of 1 bit)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Codes(np.zeros((2, 1), np.int64), 8), "must be uint8, got int64"),
        (lambda: Codes(np.zeros((2, 2), np.uint8), 8), r"must have shape \(n, 1\), got \(2, 2\)"),
        (lambda: Codes(np.zeros(3, np.uint8), 24), r"got \(3,\)"),
        (lambda: Codes(np.zeros((1, 1), np.uint8), 0), "at least 1, got 0"),
        (lambda: Codes(np.zeros((1, 1), np.uint8), 8.0), "integer of at least 1, got 8.0"),
        (
            lambda: Codes(np.array([[0], [4]], np.uint8), 2),
            "padding bits of each code must be zero, got .* in row 1",
        ),
        (lambda: Codes.from_bits([1, 0]), "got 1D; reshape a code"),
        (lambda: Codes.from_bits([[0, 1], [1]]), "pass rows of equal length"),
        (lambda: Codes.from_bits([[0, 2]]), "must be 0 or 1, got 2 in row 0, column 1"),
        (lambda: Codes.from_bits([[0, np.nan]]), "got nan in row 0, column 1"),
        (lambda: Codes.from_bits([["0"]]), "must be numbers or booleans"),
        (lambda: Codes.from_bits(np.zeros((2, 0))), "at least 1, got 0"),
        (lambda: Codes.from_bits([[1]])[0, 0], "indexed by rows, got 2 indices"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_a_row_out_of_range_ends_iteration():
    with pytest.raises(IndexError, match="index 1 is out of bounds"):
        Codes.from_bits([[1]])[1]


@given(bits=bit_matrices)
def test_save_and_load_are_inverse(tmp_path_factory, bits):
    path = tmp_path_factory.mktemp("codes") / "codes.npz"
    codes = Codes.from_bits(bits)
    codes.save(path)
    assert Codes.load(path) == codes
    assert [entry.name for entry in path.parent.iterdir()] == ["codes.npz"]


def test_a_file_written_by_plain_numpy_is_read(tmp_path):
    path = tmp_path / "other.npz"
    np.savez_compressed(path, packed=np.array([[3, 1]], np.uint8), n_bits=9, format_version=1)
    assert Codes.load(path) == Codes.from_bits([[1, 1, 0, 0, 0, 0, 0, 0, 1]])


def test_plain_numpy_reads_what_was_saved(tmp_path):
    path = tmp_path / "codes.npz"
    Codes.from_bits([[1, 1, 0]]).save(path)
    with np.load(path, allow_pickle=False) as archive:
        assert archive["packed"].tolist() == [[3]]
        assert int(archive["n_bits"]) == 3


@pytest.mark.parametrize(  # within one read of a zip, and beyond
    ("n", "flipped"), [(3, 1), (2000, 1), *(pytest.param(n, 8, marks=pytest.mark.rare) for n in (3, 2000))]
)
def test_every_flipped_bit_and_every_truncation_is_noticed(tmp_path, n, flipped):
    path = tmp_path / "codes.npz"
    codes = Codes.from_bits(np.random.default_rng(0).integers(0, 2, (n, 64)))
    codes.save(path)
    whole = path.read_bytes()
    harmless = 0
    positions = {*range(400), *range(400, len(whole) - 600, 97), *range(len(whole) - 600, len(whole))}
    for position in sorted(positions):
        for bit in range(position, position + flipped):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                loaded = Codes.load(path)
            except FormatError:
                continue
            assert loaded == codes  # a date or a flag of zip's own that no reader looks at
            harmless += 1
    assert harmless < flipped * 260
    for length in range(0, len(whole), max(1, len(whole) // 300)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="is damaged or does not hold codes"):
            Codes.load(path)


def test_foreign_pickled_and_newer_files_are_refused(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, packed=np.array([{"code": "object"}], dtype=object), n_bits=8, format_version=1)
    with pytest.raises(FormatError, match="damaged"):
        Codes.load(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(FormatError, match="damaged"):
        Codes.load(path)
    np.savez(path, packed=np.zeros((1, 1), np.uint8), n_bits=8, format_version=2)
    with pytest.raises(FormatError, match="expected 1; install a newer version"):
        Codes.load(path)
    np.save(tmp_path / "one.npy", np.zeros((1, 1), np.uint8))
    with pytest.raises(FormatError, match="damaged"):
        Codes.load(tmp_path / "one.npy")
    with pytest.raises(FileNotFoundError):
        Codes.load(tmp_path / "missing.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "codes.npz"
    old = Codes.from_bits([[1, 0]])
    old.save(path)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Codes.from_bits([[0, 1]]).save(path, overwrite=True)
    assert Codes.load(path) == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["codes.npz"]


# Bit orders


@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(0, 6), st.integers(1, 40)), elements=st.integers(0, 1)),
    st.sampled_from(["little", "big"]),
)
def test_packed_bytes_come_and_go_in_either_bit_order(bits, order):
    packed = np.packbits(bits, axis=1, bitorder=order)
    codes = Codes.from_packed(packed, bits.shape[1], bitorder=order)
    assert codes == Codes.from_bits(bits)
    assert np.array_equal(codes.to_packed(order), packed)


def test_whole_bytes_need_no_length():
    packed = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert Codes.from_packed(packed) == Codes(packed, 32)
    assert np.shares_memory(Codes.from_packed(packed).to_packed(), packed)


def test_a_file_that_a_shell_wrote(tmp_path):
    """Bytes in octal, as printf of a shell writes them: 1010 0000 and 0000 0001, most significant bit first."""
    subprocess.run(["sh", "-c", r"printf '\240\001' > codes.bin"], cwd=tmp_path, check=True, timeout=1200)
    packed = np.fromfile(tmp_path / "codes.bin", dtype=np.uint8).reshape(2, 1)
    codes = Codes.from_packed(packed, bitorder="big")
    assert codes.to_bits().tolist() == [[1, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1]]
    assert Codes.from_packed(packed).to_bits().tolist() == [[0, 0, 0, 0, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0, 0, 0]]
    codes.to_packed("big").tofile(tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == (tmp_path / "codes.bin").read_bytes()


def test_what_is_no_packed_code_of_this_order():
    packed = np.packbits(np.ones((2, 12), dtype=np.uint8), axis=1)
    assert Codes.from_packed(packed, 12, bitorder="big").to_bits().all()
    with pytest.raises(DataError, match="padding bits of each code must be zero, got others in row 0"):
        Codes.from_packed(packed, 12, bitorder="little")
    with pytest.raises(DataError, match="bitorder must be 'little' or 'big', got 'middle'"):
        Codes.from_packed(packed, 12, bitorder="middle")
    with pytest.raises(DataError, match="bitorder must be"):
        Codes.from_bits([[1]]).to_packed(None)
    with pytest.raises(DataTypeError, match="packed codes must be uint8, got int8"):
        Codes.from_packed(packed.view(np.int8), 12, bitorder="big")
    with pytest.raises(DataError, match=r"must have shape \(n, 1\), got \(2,\)"):
        Codes.from_packed(packed[0])


def test_a_file_that_exists_is_replaced_only_if_asked(tmp_path):
    first, second = Codes.from_bits(np.eye(3, dtype=int)), Codes.from_bits(np.ones((2, 3), dtype=int))
    first.save(tmp_path / "codes.npz")
    with pytest.raises(StorageError, match="codes.npz exists already; pass overwrite=True to replace it"):
        second.save(tmp_path / "codes.npz")
    assert Codes.load(tmp_path / "codes.npz") == first
    second.save(tmp_path / "codes.npz", overwrite=True)
    assert Codes.load(tmp_path / "codes.npz") == second

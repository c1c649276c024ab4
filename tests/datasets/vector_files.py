"""Files of vectors that other programs wrote, or that were packed by hand from the descriptions of the formats."""

import csv
import gzip
import struct

import numpy as np

WHOLE = np.random.default_rng(0).integers(0, 100, size=(40, 5))

FORMATS = ["fvecs", "bvecs", "ivecs", "fbin", "u8bin", "i8bin", "ibin"]
FORMATS += ["npy", "npz", "hdf5", "parquet", "csv", "tsv", "txt"]
MAPPED = ["fvecs", "bvecs", "ivecs", "fbin", "u8bin", "i8bin", "ibin", "npy", "hdf5"]
LETTERS = {"fvecs": "f", "bvecs": "B", "ivecs": "i", "fbin": "f", "u8bin": "B", "i8bin": "b", "ibin": "i"}


def foreign_file(path, matrix=WHOLE, variant=0):
    """Write ``matrix`` at ``path`` in the format of its ending, without the code under test."""
    name, ending = path.name, path.name.split(".", 1)[1]
    if name.endswith(".gz"):
        plain = path.with_name(name.removesuffix(".gz"))
        foreign_file(plain, matrix, variant)
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    elif ending.endswith("vecs"):
        row = f"<i{matrix.shape[1]}{LETTERS[ending]}"
        path.write_bytes(b"".join(struct.pack(row, len(vector), *vector.tolist()) for vector in matrix))
    elif ending.endswith("bin"):
        numbers = struct.pack(f"<{matrix.size}{LETTERS[ending]}", *matrix.ravel().tolist())
        path.write_bytes(struct.pack("<II", *matrix.shape) + numbers)
    elif ending == "npy":
        np.save(path, np.asfortranarray(matrix) if variant % 2 else matrix.astype(">f4"))
    elif ending == "npz":
        (np.savez if variant % 2 else np.savez_compressed)(path, train=matrix, labels=np.arange(3), test=matrix[:2])
    elif ending == "hdf5":
        _hdf5(path, matrix, variant)
    elif ending == "parquet":
        _parquet(path, matrix, variant)
    elif ending == "csv" and variant % 2:
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
            writer.writerow(f"column {number}" for number in range(matrix.shape[1]))
            writer.writerows(matrix.tolist())
    else:
        separator = {"csv": ",", "tsv": "\t", "txt": " "}[ending]
        np.savetxt(path, matrix, delimiter=separator, header="made by savetxt" if variant % 2 else "")
    return path


def _hdf5(path, matrix, variant):
    import h5py

    with h5py.File(path, "w", userblock_size=512 if variant % 3 == 2 else 0) as file:
        if variant % 2:
            file.create_dataset("train", data=matrix, chunks=(8, matrix.shape[1]), compression="gzip", shuffle=True)
        else:
            file["train"] = matrix.astype(np.float32)
        file["test"] = matrix[:2]
        file.attrs["distance"] = "euclidean"


def _parquet(path, matrix, variant):
    import pyarrow
    import pyarrow.parquet

    numbers = pyarrow.array(matrix.ravel().astype(np.float32))
    lists = pyarrow.FixedSizeListArray.from_arrays(numbers, matrix.shape[1])
    if variant % 2:
        lists = pyarrow.array(matrix.astype(np.float64).tolist())
    table = pyarrow.table({"id": pyarrow.array(range(len(matrix))), "embedding": lists})
    pyarrow.parquet.write_table(table, path, row_group_size=16, compression="zstd" if variant % 2 else "none")

"""The features of the CPU that kernels are compiled for."""

import numba
import pytest
from llvmlite import binding

from autojacobin.core.simd import machine_has


@pytest.mark.parametrize(
    ("name", "features", "has", "lacks"),
    [
        ("generic", "", (), ("ssse3", "avx2", "avx512f")),
        ("haswell", None, ("ssse3", "avx2", "f16c"), ("avx512f", "neon")),
        ("haswell", "+avx512f,-avx2", ("avx512f", "ssse3"), ("avx512bw", "avx2")),
        (None, "+ssse3", ("ssse3",), ("avx2",)),
        ("neoverse-n1", "", ("neon", "dotprod"), ("ssse3",)),
        ("a-new-cpu", "", (), ("avx2",)),
    ],
)
def test_a_cpu_that_is_named_has_its_own_features(monkeypatch, name, features, has, lacks):
    monkeypatch.setattr(numba.config, "CPU_NAME", name)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", features)
    assert all(machine_has(feature) for feature in has)
    assert not any(machine_has(feature) for feature in lacks)


def test_otherwise_it_is_this_machine(monkeypatch):
    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", None)
    host = binding.get_host_cpu_features()
    assert [machine_has(feature) for feature in host] == list(host.values())


@pytest.mark.parametrize(
    ("name", "found", "has", "lacks"),
    [
        ("haswell", {"avx2": False, "ssse3": True}, ("ssse3",), ("avx2", "dotprod")),  # switched off by a hypervisor
        ("neoverse-n1", {"neon": True}, ("neon", "dotprod"), ("avx2",)),  # LLVM does not look for dotprod
    ],
)
def test_the_name_counts_for_what_llvm_does_not_look_for(monkeypatch, name, found, has, lacks):
    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", None)
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: name)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: found)
    assert all(machine_has(feature) for feature in has)
    assert not any(machine_has(feature) for feature in lacks)

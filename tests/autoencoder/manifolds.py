"""Manifolds with a known nearest-point function f and known tangent spaces."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Sphere:
    """Unit sphere of dimension D − 1 around the origin; for D = 2 the circle."""

    D: int

    def sample(self, n, rng):
        points = rng.normal(size=(n, self.D))
        return points / np.linalg.norm(points, axis=1, keepdims=True)

    def nearest(self, x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    def projector(self, m):
        return np.eye(self.D) - np.outer(m, m)


@dataclass(frozen=True)
class Torus:
    """Points at distance r from a circle of radius R in the plane of the first two axes."""

    R: float = 2.0
    r: float = 0.7
    D: int = 3

    def sample(self, n, rng):
        u, v = rng.uniform(0, 2 * np.pi, (2, n))
        ring = self.R + self.r * np.cos(v)
        return np.stack([ring * np.cos(u), ring * np.sin(u), self.r * np.sin(v)], axis=1)

    def _core(self, x):
        core = np.array(x)
        core[..., 2] = 0
        return self.R * core / np.linalg.norm(core, axis=-1, keepdims=True)

    def nearest(self, x):
        core = self._core(x)
        return core + self.r * (x - core) / np.linalg.norm(x - core, axis=-1, keepdims=True)

    def projector(self, m):
        normal = (m - self._core(m)) / self.r
        return np.eye(3) - np.outer(normal, normal)


@dataclass(frozen=True)
class Affine:
    """A random affine subspace of dimension p in D dimensions."""

    D: int = 7
    p: int = 3
    seed: int = 0
    basis: np.ndarray = field(init=False)
    offset: np.ndarray = field(init=False)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        object.__setattr__(self, "basis", np.linalg.qr(rng.normal(size=(self.D, self.p)))[0].T)
        object.__setattr__(self, "offset", rng.normal(size=self.D))

    def sample(self, n, rng):
        return self.offset + rng.normal(size=(n, self.p)) @ self.basis

    def nearest(self, x):
        return self.offset + (x - self.offset) @ self.basis.T @ self.basis

    def projector(self, m):
        return self.basis.T @ self.basis

"""Arguments packed for the CUDA driver, held against C's layout; the driver is a stand-in here."""

from __future__ import annotations

import ctypes

import pytest

from recsys.kernels.embedding_bag import launch


class Driver:
    """Remembers launches, and tells the places of a kernel's parameters."""

    def __init__(self, places: list[tuple[int, int]]) -> None:
        self.places = places
        self.launches: list[tuple[object, ...]] = []
        self.error = 0

    def cuFuncGetParamInfo(self, function, place, offset, size) -> int:
        if place.value >= len(self.places):
            return 1
        offset._obj.value, size._obj.value = self.places[place.value]
        return 0

    def cuLaunchKernel(self, function, *rest) -> int:
        *sizes, stream, parameters, extra = rest
        num_bytes = ctypes.c_size_t.from_address(extra[3]).value
        packed = ctypes.string_at(extra[1], num_bytes)
        assert (extra[0], extra[2], extra[4], parameters) == (1, 2, None, None)
        self.launches.append((function.value, *sizes, stream.value, packed))
        return self.error


TYPES = ("*fp32", "i32", "*i64", "i64", "fp32", "i32")


class Parameters(ctypes.Structure):
    """What C makes of these types, with the two pointers that Triton adds."""

    _fields_ = (
        ("a", ctypes.c_void_p), ("b", ctypes.c_int), ("c", ctypes.c_void_p),
        ("d", ctypes.c_longlong), ("e", ctypes.c_float), ("f", ctypes.c_int),
        ("scratch", ctypes.c_void_p), ("profile", ctypes.c_void_p),
    )  # fmt: skip


PLACES = [
    (getattr(Parameters, name).offset, getattr(Parameters, name).size)
    for name, _ in Parameters._fields_
]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver(list(PLACES))
    monkeypatch.setattr(launch, "driver", lambda: found)
    return found


def test_a_launch_hands_over_what_c_would(driver: Driver) -> None:
    found = launch.packing(7, TYPES)
    kernel = launch.Packed(7, *found, 128, 96)
    for first in (1 << 40, 3):
        assert kernel.launch(5, 11, (first, -2, 1 << 50, -(1 << 40), 0.5, 9)) == 0
        function, *sizes, stream, packed = driver.launches[-1]
        assert (function, stream) == (7, 11)
        assert sizes == [5, 1, 1, 128, 1, 1, 96]
        truth = Parameters(first, -2, 1 << 50, -(1 << 40), 0.5, 9, None, None)
        read = Parameters.from_buffer_copy(packed)
        names = [name for name, _ in Parameters._fields_]
        assert [getattr(read, name) for name in names] == [getattr(truth, name) for name in names]


def test_nothing_is_packed_where_the_driver_says_otherwise(driver: Driver) -> None:
    assert launch.packing(7, TYPES[:-1]) is None
    assert launch.packing(7, (*TYPES[:-1], "fp16")) is None
    driver.places[3] = (PLACES[3][0] + 8, 8)
    assert launch.packing(7, TYPES) is None
    driver.places.clear()
    assert launch.packing(7, TYPES) is None

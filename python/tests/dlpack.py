"""Makers of DLPack capsules, to be as odd as the protocol allows."""

import ctypes

_ALIVE = {}


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Plain(ctypes.Structure):
    pass


class Versioned(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Plain._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]
Versioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", _DELETER),
    ("flags", ctypes.c_uint64),
    ("tensor", DLTensor),
]
READ_ONLY, COPIED = 1, 2

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """An array of no library: numpy's memory in a capsule of either version.

    deleted: how often a consumer has given its tensor back. asked: the arguments of each export.
    """

    def __init__(self, array, *, version=(1, 1), flags=0, device=(1, 0), offset=0, strides=True):
        self.array = array
        self.version, self.flags, self.device = version, flags, device
        self.offset, self.with_strides = offset, strides
        self.deleted, self.asked = 0, []
        self.shape = array.shape

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **kwargs):
        if self.version is None and "max_version" in kwargs:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(kwargs)
        managed = Plain() if self.version is None else Versioned()
        a, t = self.array, managed.tensor
        sizes = (ctypes.c_int64 * max(a.ndim, 1))(*a.shape)
        steps = (ctypes.c_int64 * max(a.ndim, 1))(*[s // a.itemsize for s in a.strides])
        code = {"i": 0, "u": 1, "f": 2, "V": 4}[a.dtype.kind]
        t.data, t.byte_offset = a.ctypes.data - self.offset, self.offset
        t.device = DLDevice(*self.device)
        t.ndim, t.dtype = a.ndim, DLDataType(code, a.itemsize * 8, 1)
        t.shape = sizes
        if self.with_strides:
            t.strides = steps
        address = ctypes.addressof(managed)

        def give_back(_):
            self.deleted += 1
            del _ALIVE[address]

        managed.deleter = _DELETER(give_back)
        _ALIVE[address] = (managed, sizes, steps)
        if self.version is None:
            return _new(address, b"dltensor", None)
        managed.major, managed.minor = self.version
        managed.flags = self.flags
        return _new(address, b"dltensor_versioned", None)


class Namespaced(Exporter):
    """One whose library, numpy, takes over memory."""

    def __array_namespace__(self):
        import numpy

        return numpy

"""Which OpenGL draws MuJoCo's worlds without a display: EGL, or OSMesa."""

import ctypes
import ctypes.util
import os

from rl_lab.core.errors import UserError

VARIABLE = "MUJOCO_GL"  # where MuJoCo, the control suite and Gymnasium look
BACKENDS = ("egl", "osmesa")  # that need no display
_DEVICES = 0x313F  # EGL_PLATFORM_DEVICE_EXT


def choose_backend(id: str) -> str:
    """Set `MUJOCO_GL` to one that works here. A choice of the user stays."""
    if VARIABLE not in os.environ:
        found = next((name for name in BACKENDS if is_usable(name)), None)
        if found is None:
            raise UserError(
                f"pictures of '{id}' need OpenGL without a display: "
                "apt-get install libegl1 (EGL), or libosmesa6 (OSMesa)"
            )
        os.environ[VARIABLE] = found
    return os.environ[VARIABLE]


def is_usable(backend: str) -> bool:
    """Looked at before the import: what fails there cannot be tried again in this process."""
    if backend == "osmesa":
        return ctypes.util.find_library("OSMesa") is not None
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    address = egl.eglGetProcAddress
    address.restype = ctypes.c_void_p
    devices, count = (ctypes.c_void_p * 16)(), ctypes.c_int(0)
    signature = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    opening = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p)
    query, display_of = address(b"eglQueryDevicesEXT"), address(b"eglGetPlatformDisplayEXT")
    if not query or not display_of:
        return False
    signature(query)(16, ctypes.addressof(devices), ctypes.addressof(count))
    for device in devices[: count.value]:
        display = opening(display_of)(_DEVICES, device, None)
        if display and egl.eglInitialize(ctypes.c_void_p(display), None, None):
            return True
    return False

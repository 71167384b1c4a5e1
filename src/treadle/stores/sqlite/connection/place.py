"""Check that a path can hold a database, before SQLite creates or opens a file there."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.model.errors import InvalidStoreUrl, SchemaBehind, StoreReadOnly, StoreUnsafe

NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "ocfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs"}
    | {"fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.davfs"}
)
"""File systems on which processes do not share memory, or locks are unreliable."""

_MOUNTS = Path("/proc/self/mounts")


def check_place(path: Path, *, create: bool = True, mounts: Path = _MOUNTS) -> None:
    """Raise an error if the path is unusable; writes nothing."""
    if path.is_dir():
        raise InvalidStoreUrl(f"{path} is a directory. Name a file in it, e.g. {path / 'treadle.db'}.")
    directory = path.absolute().parent
    if not directory.is_dir():
        raise InvalidStoreUrl(f"There is no directory {directory}. Create it (mkdir -p {directory}), or choose another path.")
    kind = file_system(directory, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnsafe(
            f"{path} is on a network file system ({kind}). SQLite's write-ahead log needs memory that all processes share and "
            "locks that work, which such a file system does not give: the database would be damaged sooner or later. Put the "
            "file on a local disk, or use PostgreSQL."
        )
    if not create and not path.exists():
        raise SchemaBehind(f"There is no database at {path} yet. `treadle dev`, a worker or `treadle store migrate` makes it.")
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreReadOnly(f"{path} cannot be written by this user. Give it write access (chmod u+w), or choose another path.")
    if not os.access(directory, os.W_OK) or os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise StoreReadOnly(
            f"The directory {directory} cannot be written by this user, and SQLite keeps its write-ahead log beside the database. "
            "Give it write access, or choose another path."
        )


def file_system(directory: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the file system that holds the directory, or None if the system does not report it."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    place = directory.resolve()
    best, kind = -1, None
    for line in lines:
        _, point, found, *_ = line.split(" ")
        mounted = Path(point.encode().decode("unicode_escape"))
        if place.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind = len(mounted.parts), found
    return kind

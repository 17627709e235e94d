"""Free memory counts the memory limit of a cgroup, in both versions of cgroups."""

from pathlib import Path

import pytest

from cerebras_tensorflow.runtime.host import memory

GB = 10**9
NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "4:memory:/job/step", "memory"),
    2: ("memory.max", "memory.current", "inactive_file", "0::/job/step", ""),
}


def make(folder: Path, version: int, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAMES[version][0]).write_text(f"{limit}\n")
    (folder / NAMES[version][1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{NAMES[version][2]} {cached}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_limit_of_a_cgroup_or_one_above_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    process, root = tmp_path / "cgroup", tmp_path / "mounted"
    process.write_text(f"7:pids:/other\n{NAMES[version][3]}\n")
    monkeypatch.setattr(memory, "_PROCESS", process)
    monkeypatch.setattr(memory, "_CGROUPS", root)
    of_machine = memory.free_memory_bytes()
    top = root / NAMES[version][4]
    make(top / "job", version, str(of_machine // 4), 1000, 300)
    make(top / "job" / "step", version, "max" if version == 2 else str(2**62), 1000, 0)
    assert memory.free_memory_bytes() == of_machine // 4 - 700
    make(top / "job" / "step", version, "900", 1000, 0)
    assert memory.free_memory_bytes() == 0


def test_without_cgroups_the_memory_of_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_PROCESS", tmp_path / "missing")
    assert memory.free_memory_bytes() > GB // 10

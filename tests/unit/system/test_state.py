import pytest

from cerebras_tensorflow.errors import ExecModeError, SystemStateError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.state import SystemState, activated, check_admits, to_standby, with_mode

ACTIVE = SystemState("lab", "10.0.0.1:9000", "pipelined", is_mode_pinned=True)


def test_the_mode_changes_only_in_standby() -> None:
    with pytest.raises(SystemStateError, match="Run `system standby` first"):
        with_mode(ACTIVE, "weight_streaming")
    assert with_mode(to_standby(ACTIVE), "weight_streaming").execution_mode == "weight_streaming"


def test_activation_reboots_for_a_while() -> None:
    state = activated(to_standby(ACTIVE), now=100.0)
    assert state.phase(100.0) == "BOOTING"
    assert state.phase(100.0 + facts.REBOOT_WALL_S.value) == "ACTIVE"


def test_standby_twice_and_activation_twice_are_refused() -> None:
    with pytest.raises(SystemStateError, match="STANDBY already"):
        to_standby(to_standby(ACTIVE))
    with pytest.raises(SystemStateError, match="nothing to activate"):
        activated(ACTIVE, now=0.0)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of pipelined, weight_streaming"):
        with_mode(to_standby(ACTIVE), "turbo")


def test_the_error_in_the_other_mode_names_the_commands() -> None:
    with pytest.raises(ExecModeError, match=r'cs --system lab -c "system standby --yes".*weight_streaming'):
        check_admits(ACTIVE, "weight_streaming")


def test_the_error_in_standby_names_the_command() -> None:
    with pytest.raises(SystemStateError, match='cs --system lab -c "system activate"'):
        check_admits(to_standby(ACTIVE), "pipelined")


def test_a_system_does_not_stay_booting_after_the_clock_is_set_back() -> None:
    state = activated(to_standby(ACTIVE), now=1_000_000.0)
    assert state.phase(now=1_000_001.0) == "BOOTING"
    assert state.phase(now=500_000.0) == "ACTIVE"

"""The check of alerts against the guide passes on a right text, and fails on one with a planted error."""

import check_monitoring
import pytest

RULES = [
    {"alert": "AtollSlow", "for": "10m", "labels": {"severity": "warning"}},
    {"alert": "AtollGone", "for": "1h", "labels": {"severity": "critical"}},
    {"alert": "AtollDamage", "labels": {"severity": "warning"}},
]
RIGHT = """
### AtollSlow

*warning, after 10 minutes.* It is slow.

### AtollGone

*critical, after 1 hour.* It is gone.

### AtollDamage

*warning.* It is damaged.
"""


def test_severities_and_delays_of_the_rules_pass():
    assert [*check_monitoring.check_delays(RULES, RIGHT)] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("10 minutes", "5 minutes"),
        ("critical,", "warning,"),
        ("*warning.*", "*warning, after 1 minute.*"),
        ("*critical, after 1 hour.* ", ""),
    ],
)
def test_other_severities_and_delays_are_errors(right, wrong):
    assert len([*check_monitoring.check_delays(RULES, RIGHT.replace(right, wrong))]) == 1


def test_the_guide_of_the_repository_passes():
    guide = (check_monitoring.ROOT / check_monitoring.GUIDE_PAGE).read_text()
    assert [*check_monitoring.check_delays(check_monitoring.read_rules(), guide)] == []

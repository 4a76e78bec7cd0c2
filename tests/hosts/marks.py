"""The marks of a test whose hosts this machine plays."""

import os

import pytest

from tests.hosts.namespaces import ONLY_ROOT

ON_HOSTS = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason=ONLY_ROOT)]

"""What is missing is logged when that begins and ends, unless it is no news."""

from monitored_node import SERVER, NoEngine
from stallwatch.sections import CollectorsConfig
from stallwatch.snapshot import Failure


def missing(caplog):
    """Return what was logged as missing, and as back."""
    return [
        (record.getMessage(), record.collector, record.reason) for record in caplog.records if "signal" in record.msg
    ]


class Refused(NoEngine):
    """An engine whose port refuses."""

    async def collect(self, server, settings):
        """Be refused."""
        return None, (Failure("engine", "refused", "", server.name),)


async def test_a_port_that_opens_last_is_no_news(watch, caplog):
    """While a server starts, its port refuses; once it was ready that is said, and when it has gone nothing is back."""
    node = watch(collectors=CollectorsConfig(health=False))
    node.monitor._direct["engine"] = Refused()
    with caplog.at_level("INFO", logger="stallwatch.monitor"):
        await node.ticks(12)
        assert missing(caplog) == []
        node.show(SERVER, phase="ready")
        await node.ticks(2)
        assert missing(caplog) == [("signal missing", "engine", "refused")]
        node.show()
        await node.ticks(12)
        assert missing(caplog) == [("signal missing", "engine", "refused")]

"""Export the metrics of engines to Prometheus."""

from asyncgen_apps.metrics.prometheus import (
    EngineCollector,
    exposition,
    exposition_of,
    families,
)

__all__ = ["EngineCollector", "exposition", "exposition_of", "families"]

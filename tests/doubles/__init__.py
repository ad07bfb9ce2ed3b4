"""Stand-ins for what the tests must not depend on: networks, big models, clocks."""

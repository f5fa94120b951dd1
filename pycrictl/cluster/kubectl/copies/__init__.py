"""``kubectl container-cp``: copies through the agents' API, resumed after interruptions."""

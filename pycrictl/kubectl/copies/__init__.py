"""``kubectl container-cp``: copies through the agents' API, taken up again where they broke off."""

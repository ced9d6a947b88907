"""Group coordinators and their members: shards and cores in virtual time, with their records, and scripted,
modelled and real members of groups and transactions.
"""

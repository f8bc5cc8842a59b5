"""The ledger's schema, step by step. Only upwards: the way back is the backup that an upgrade makes.

A new step is written by hand after script.py.mako, as versions/NNNN_what.py, together with the change of
nodeagent/ledger/tables.py or triggers.py, and tests/ledger/samples/NNNN.sql with rows of the new schema:
the tests hold all three to each other, and upgrade every sample.
"""

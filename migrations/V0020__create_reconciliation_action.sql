-- What was done about differences, by whom and why.

CREATE TABLE reconciliation_action (
    action_id bigint GENERATED ALWAYS AS IDENTITY,
    discrepancy_id bigint NOT NULL,
    action text COLLATE "C" NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    outcome text NOT NULL,
    happened_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT reconciliation_action_pkey PRIMARY KEY (action_id),
    CONSTRAINT reconciliation_action_discrepancy_fkey
        FOREIGN KEY (discrepancy_id) REFERENCES discrepancy (discrepancy_id),
    CONSTRAINT reconciliation_action_actor_named CHECK (actor <> '')
);

CREATE INDEX reconciliation_action_by_discrepancy
ON reconciliation_action (discrepancy_id, action_id);

COMMENT ON TABLE reconciliation_action IS 'Repairs that were applied, or tried, one row each.';
COMMENT ON COLUMN reconciliation_action.action IS 'A word for what was done.';
COMMENT ON COLUMN reconciliation_action.actor IS 'The operator or the service, as it names itself.';
COMMENT ON COLUMN reconciliation_action.outcome IS 'What came of it, in a word.';

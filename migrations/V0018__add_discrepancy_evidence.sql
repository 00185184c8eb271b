-- What each side said about a difference, and what would mend it.

ALTER TABLE discrepancy
ADD COLUMN evidence_redis text NOT NULL DEFAULT '',
ADD COLUMN evidence_postgres text NOT NULL DEFAULT '',
ADD COLUMN repair text COLLATE "C" NOT NULL DEFAULT '',
ADD COLUMN repairable text COLLATE "C" NOT NULL DEFAULT 'NONE',
ADD CONSTRAINT discrepancy_repairable_word
CHECK (repairable IN ('AUTOMATIC', 'OPERATOR', 'NONE')) NOT VALID;

COMMENT ON COLUMN discrepancy.evidence_redis IS 'What Redis said; never a user id.';
COMMENT ON COLUMN discrepancy.evidence_postgres IS 'What PostgreSQL said; never a user id.';
COMMENT ON COLUMN discrepancy.repair IS 'A word for what would mend it; empty when nothing is known to.';
COMMENT ON COLUMN discrepancy.repairable IS
'AUTOMATIC: the services mend it. OPERATOR: a person applies the repair. NONE: a person has to look.';

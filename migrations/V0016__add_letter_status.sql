-- What operators did about a parked message.

ALTER TABLE dead_letter
ADD COLUMN status text COLLATE "C" NOT NULL DEFAULT 'OPEN',
ADD COLUMN acted_at timestamptz,
ADD COLUMN acted_by text,
ADD COLUMN acted_reason text,
ADD COLUMN outcome text,
ADD CONSTRAINT dead_letter_status_word
CHECK (status IN ('OPEN', 'REPLAYED', 'DISCARDED')) NOT VALID,
ADD CONSTRAINT dead_letter_action_whole CHECK (
    num_nulls(acted_at, acted_by, acted_reason, outcome) IN (0, 4)
    AND (status = 'OPEN' OR acted_at IS NOT NULL)
) NOT VALID;

COMMENT ON COLUMN dead_letter.status IS
'OPEN, REPLAYED or DISCARDED. One that is parked again after a replay is OPEN again.';
COMMENT ON COLUMN dead_letter.acted_at IS 'When an operator last did something about it.';
COMMENT ON COLUMN dead_letter.acted_by IS 'Who.';
COMMENT ON COLUMN dead_letter.acted_reason IS 'Why.';
COMMENT ON COLUMN dead_letter.outcome IS 'What came of it, in a word.';

-- Letters on record as replayed get the status that says so; then the old rows are checked.

UPDATE dead_letter
SET
    status = 'REPLAYED', acted_at = replayed_at, acted_by = replayed_by, acted_reason = '',
    outcome = 'replayed'
WHERE replayed_at IS NOT NULL AND status = 'OPEN';

ALTER TABLE dead_letter VALIDATE CONSTRAINT dead_letter_status_word;
ALTER TABLE dead_letter VALIDATE CONSTRAINT dead_letter_action_whole;

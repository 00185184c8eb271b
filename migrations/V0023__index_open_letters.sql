-- What of a version is open is asked again and again towards its end; letters are kept for ever.

-- squawk-ignore require-concurrent-index-creation
CREATE INDEX dead_letter_open ON dead_letter (activity_id, sku_id, version)
WHERE status = 'OPEN';

CREATE TABLE tollgate_rows (
  tag text NOT NULL,
  key text NOT NULL,
  -- The version in 20 bytes, then the row.
  value bytea NOT NULL,
  expires_at timestamptz,
  PRIMARY KEY (tag, key)
) WITH (fillfactor = 50);
-- Rows are not worth compressing, and only their beginning is compared.
ALTER TABLE tollgate_rows ALTER COLUMN value SET STORAGE EXTERNAL;

-- Who waits for a row, until when, in microseconds. After a crash or a promotion everybody asks again.
CREATE UNLOGGED TABLE tollgate_notes (
  tag text NOT NULL,
  key text NOT NULL,
  owner bigint NOT NULL,
  lasts_until bigint NOT NULL,
  note bytea NOT NULL,
  PRIMARY KEY (tag, key, owner)
);

CREATE UNLOGGED TABLE tollgate_owners (
  owner bigint PRIMARY KEY,
  process text NOT NULL,
  lease_until timestamptz NOT NULL
);

-- Compares and replaces the rows of one provider: the duties of RowStore, and nothing else.
CREATE FUNCTION tollgate_exchange(
  in_tag text, in_owner bigint, in_timeline bigint, in_from bigint, in_to bigint, in_offset bigint,
  has_scope boolean, expected_keys text[], expected_versions bytea[], read_keys text[],
  wait_keys text[], wait_lasts bigint[], wait_notes bytea[], stop_keys text[],
  new_keys text[], new_values bytea[], new_keeps bigint[]
) RETURNS TABLE (
  stored_at bigint, timeline bigint, is_replaced boolean, row_values bytea[],
  note_keys text[], note_owners bigint[], notes bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
  named text[] := expected_keys || read_keys;
  message text;
BEGIN
  IF cardinality(new_keys) > 0 OR cardinality(wait_keys) > 0 THEN
    PERFORM pg_advisory_xact_lock(28775, hashtext(in_tag));
  END IF;
  timeline := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
  stored_at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + in_offset;
  IF cardinality(wait_keys) > 0 THEN
    INSERT INTO tollgate_notes
      SELECT in_tag, w.key, in_owner, stored_at + w.lasts, w.note
      FROM unnest(wait_keys, wait_lasts, wait_notes) AS w(key, lasts, note)
      ON CONFLICT (tag, key, owner)
      DO UPDATE SET lasts_until = excluded.lasts_until, note = excluded.note;
  END IF;
  is_replaced := cardinality(new_keys) > 0
    AND (in_timeline IS NULL OR in_timeline = timeline)
    AND (in_from IS NULL OR stored_at BETWEEN in_from AND in_to)
    AND NOT EXISTS (
      SELECT FROM unnest(expected_keys, expected_versions) AS e(key, version)
      LEFT JOIN tollgate_rows r ON r.tag = in_tag AND r.key = e.key
        AND (r.expires_at IS NULL OR r.expires_at > clock_timestamp())
      WHERE substring(r.value FOR 20) IS DISTINCT FROM e.version);
  IF is_replaced THEN
    INSERT INTO tollgate_rows
      SELECT in_tag, n.key, n.value, clock_timestamp() + n.keep * interval '1 microsecond'
      FROM unnest(new_keys, new_values, new_keeps) AS n(key, value, keep)
      ON CONFLICT (tag, key)
      DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at;
    DELETE FROM tollgate_notes o
      WHERE o.tag = in_tag AND o.owner = in_owner AND o.key = ANY (stop_keys);
    IF has_scope OR EXISTS (
      SELECT FROM tollgate_notes o WHERE o.tag = in_tag AND o.key = ANY (new_keys)
        AND o.owner <> in_owner AND o.lasts_until > stored_at)
    THEN
      message := in_owner || ' ' || in_tag || ' ' || array_to_string(new_keys, ' ');
      -- Longer ones are not allowed. Whoever gets no keys reads everything again.
      IF octet_length(message) > 7900 THEN message := in_owner || ' ' || in_tag; END IF;
      PERFORM pg_notify('tollgate', message);
    END IF;
  ELSE
    row_values := ARRAY(
      SELECT r.value FROM unnest(named) WITH ORDINALITY AS n(key, position)
      LEFT JOIN tollgate_rows r ON r.tag = in_tag AND r.key = n.key
        AND (r.expires_at IS NULL OR r.expires_at > clock_timestamp())
      ORDER BY n.position);
  END IF;
  SELECT array_agg(o.key), array_agg(o.owner), array_agg(o.note)
    INTO note_keys, note_owners, notes
    FROM tollgate_notes o
    WHERE o.tag = in_tag AND o.key = ANY (named) AND o.lasts_until > stored_at;
  RETURN NEXT;
END $$;

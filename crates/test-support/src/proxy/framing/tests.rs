use super::*;

/// Feeds a stream in pieces of one size and returns the frames.
fn frames_of(
    framing: Framing,
    dir: Dir,
    handshake: &Arc<Handshake>,
    stream: &[u8],
    piece: usize,
) -> Vec<Bytes> {
    let mut decoder = Decoder::new(framing, dir, handshake);
    let mut frames = Vec::new();
    for part in stream.chunks(piece) {
        decoder.push(part);
        while let Some(frame) = decoder.next() {
            frames.push(frame);
        }
    }
    assert!(decoder.rest().is_empty(), "the last frame is incomplete");
    assert!(!decoder.is_broken(), "the stream counts as malformed");
    frames
}

/// The frames must come out the same, however the stream is cut into pieces.
fn assert_frames(framing: Framing, dir: Dir, expected: &[&[u8]]) {
    let stream = expected.concat();
    for piece in 1..=stream.len() {
        let frames = frames_of(framing, dir, &Arc::default(), &stream, piece);
        assert_eq!(frames, expected, "in pieces of {piece}");
    }
}

#[test]
fn redis_commands_are_whole_arrays() {
    assert_frames(
        Framing::Resp,
        Dir::ToServer,
        &[
            b"*1\r\n$4\r\nPING\r\n",
            b"PING\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$6\r\na\r\nb\r\n\r\n",
            b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
        ],
    );
}

#[test]
fn redis_replies_of_both_protocol_versions_are_whole_values() {
    assert_frames(
        Framing::Resp,
        Dir::ToClient,
        &[
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":1\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"$2\r\n\r\n\r\n",
            b"*2\r\n*1\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n",
            b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
            b"~1\r\n#t\r\n",
            b">2\r\n+message\r\n=5\r\ntxt:a\r\n",
            b"|1\r\n+ttl\r\n:3\r\n,1.5\r\n",
            b"(123\r\n",
            b"!3\r\nERR\r\n",
        ],
    );
}

#[test]
fn remoting_frames_follow_their_length() {
    assert_frames(
        Framing::Remoting,
        Dir::ToServer,
        &[b"\0\0\0\x04abcd", b"\0\0\0\x0a\0\0\0\x02{}body"],
    );
}

/// A message of PostgreSQL with its type.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).unwrap();
    [&[kind], &len.to_be_bytes()[..], body].concat()
}

/// One of the messages without a type at a connection's start.
fn untyped(code: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 8).unwrap();
    [&len.to_be_bytes(), &code.to_be_bytes(), body].concat()
}

#[test]
fn postgres_messages_follow_the_start_of_a_connection() {
    let requests = [
        untyped(SSL_REQUEST, b""),
        untyped(GSSENC_REQUEST, b""),
        untyped(196_608, b"user\0me\0\0"),
        message(b'p', b"secret\0"),
        message(b'Q', b"SELECT 1\0"),
        message(b'X', b""),
    ];
    let answers = [
        b"N".to_vec(),
        b"N".to_vec(),
        message(b'R', &[0, 0, 0, 0]),
        message(b'Z', b"I"),
    ];
    let (sent, answered) = (requests.concat(), answers.concat());
    for piece in 1..=sent.len() {
        let handshake = Arc::default();
        let frames = frames_of(Framing::Postgres, Dir::ToServer, &handshake, &sent, piece);
        assert_eq!(frames, requests, "requests in pieces of {piece}");
        let frames = frames_of(
            Framing::Postgres,
            Dir::ToClient,
            &handshake,
            &answered,
            piece,
        );
        assert_eq!(frames, answers, "answers in pieces of {piece}");
    }
}

#[test]
fn postgres_without_encryption_request_has_no_single_byte_answer() {
    let answers = [message(b'N', b"notice\0"), message(b'Z', b"I")];
    let parts: Vec<&[u8]> = answers.iter().map(Vec::as_slice).collect();
    assert_frames(Framing::Postgres, Dir::ToClient, &parts);
}

#[test]
fn raw_pieces_pass_as_they_come() {
    let mut decoder = Decoder::new(Framing::Raw, Dir::ToServer, &Arc::default());
    decoder.push(b"ab");
    assert_eq!(decoder.next().unwrap(), "ab");
    assert_eq!(decoder.next(), None);
}

#[test]
fn a_stream_that_breaks_its_protocol_passes_unframed_and_whole() {
    for (framing, stream) in [
        (Framing::Resp, &b"+OK\r\n?what\r\nmore"[..]),
        (Framing::Remoting, b"\xff\xff\xff\xffmore"),
        (Framing::Postgres, b"Z\0\0\0\x01more"),
    ] {
        for piece in 1..=stream.len() {
            let mut decoder = Decoder::new(framing, Dir::ToClient, &Arc::default());
            let mut passed = Vec::new();
            for part in stream.chunks(piece) {
                decoder.push(part);
                while let Some(frame) = decoder.next() {
                    passed.extend_from_slice(&frame);
                }
            }
            passed.extend_from_slice(&decoder.rest());
            assert_eq!(passed, stream, "{framing:?} in pieces of {piece}");
            assert!(decoder.is_broken(), "{framing:?}");
        }
    }
}

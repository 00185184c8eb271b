use std::io::ErrorKind;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::resp::{RedisConnection, encode_command};
use crate::{PrivateRedis, Value, eventually};

const SOON: Duration = Duration::from_secs(10);

/// Long enough to notice what must not arrive, since what does arrive takes less than a millisecond.
const NEVER: Duration = Duration::from_millis(150);

async fn redis_behind_a_proxy() -> (PrivateRedis, FaultProxy) {
    let redis = PrivateRedis::start().await;
    let proxy = FaultProxy::start(redis.address(), Framing::Resp).await;
    (redis, proxy)
}

async fn connect(proxy: &FaultProxy) -> RedisConnection {
    RedisConnection::open(proxy.addr()).await.unwrap()
}

fn ok() -> Value {
    Value::Status("OK".to_owned())
}

fn command(arguments: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_command(arguments, &mut bytes);
    bytes
}

/// Everything that arrives until the connection ends, and how it ended.
async fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut received = Vec::new();
    let end = timeout(SOON, stream.read_to_end(&mut received))
        .await
        .expect("the connection ends");
    (received, end.err().map(|error| error.kind()))
}

async fn assert_silent(connection: &mut RedisConnection) {
    let answer = timeout(NEVER, connection.read()).await;
    assert!(answer.is_err(), "unexpected: {answer:?}");
}

#[tokio::test]
async fn forwarding_counts_connections_frames_and_bytes() {
    let (_redis, proxy) = redis_behind_a_proxy().await;
    let mut connection = connect(&proxy).await;
    let commands = vec![vec!["SET", "k", "v"], vec!["GET", "k"]];
    let replies = connection.pipeline(&commands).await.unwrap();
    assert_eq!(replies, [ok(), Value::Text("v".to_owned())]);
    proxy.wait_for_frames(Dir::ToClient, 2, SOON).await;
    let counters = proxy.counters();
    assert_eq!((counters.connections, counters.open), (1, 1));
    assert_eq!(counters.malformed, 0);
    let requests = counters.traffic(Dir::ToServer);
    let bytes = command(&["SET", "k", "v"]).len() + command(&["GET", "k"]).len();
    assert_eq!(requests.frames, 2);
    assert_eq!(requests.bytes, u64::try_from(bytes).unwrap());
    assert_eq!(requests.forwarded, requests.bytes);
    drop(connection);
    proxy
        .wait_for(SOON, "the connection ends", |now| now.open == 0)
        .await;
}

#[tokio::test]
async fn refusing_resets_what_is_open_and_refuses_what_comes_until_it_forwards_again() {
    let (_redis, proxy) = redis_behind_a_proxy().await;
    let mut connection = connect(&proxy).await;
    assert_eq!(connection.call(&["SET", "k", "v"]).await.unwrap(), ok());
    for _ in 0..3 {
        proxy.set_mode(Mode::Refuse);
        assert!(connection.call(&["GET", "k"]).await.is_err());
        let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        proxy.set_mode(Mode::Forward);
        connection = connect(&proxy).await;
        let value = connection.call(&["GET", "k"]).await.unwrap();
        assert_eq!(value, Value::Text("v".to_owned()));
    }
}

#[tokio::test]
async fn delays_keep_order_and_do_not_add_up() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    let mut connection = connect(&proxy).await;
    let delay = Duration::from_millis(200);
    for dir in [Dir::ToServer, Dir::ToClient] {
        proxy.set_mode(Mode::Delay(delay, dir));
        let began = Instant::now();
        let commands: Vec<_> = (0..20).map(|_| vec!["INCR", "n"]).collect();
        let replies = connection.pipeline(&commands).await.unwrap();
        let numbers: Vec<i64> = replies.iter().map(Value::int).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
        assert!(began.elapsed() < delay * 15, "{:?}", began.elapsed());
    }
    assert_eq!(redis.cli(&["GET", "n"]).await.int(), 40);
}

#[tokio::test]
async fn a_cut_towards_the_client_passes_exactly_the_bytes_before_it() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    redis.cli(&["SET", "k", "0123456789"]).await;
    for bytes in [0, 1, 5, 16] {
        proxy.set_mode(Mode::CutAfter(bytes, Dir::ToClient));
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        stream.write_all(&command(&["GET", "k"])).await.unwrap();
        let (received, end) = read_to_end(&mut stream).await;
        let whole = b"$10\r\n0123456789\r\n";
        let expected = &whole[..usize::try_from(bytes).unwrap()];
        assert_eq!(received, expected);
        assert_eq!(end, Some(ErrorKind::ConnectionReset));
    }
}

#[tokio::test]
async fn a_cut_towards_the_server_leaves_half_a_command_without_effect() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    let mut connection = connect(&proxy).await;
    let whole = u64::try_from(command(&["INCR", "n"]).len()).unwrap();
    // The first command passes, the second lacks its last byte.
    proxy.set_mode(Mode::CutAfter(2 * whole - 1, Dir::ToServer));
    assert_eq!(connection.call(&["INCR", "n"]).await.unwrap().int(), 1);
    assert!(connection.call(&["INCR", "n"]).await.is_err());
    assert_eq!(redis.cli(&["GET", "n"]).await.int(), 1);
    // Each connection counts for itself.
    let mut connection = connect(&proxy).await;
    assert_eq!(connection.call(&["INCR", "n"]).await.unwrap().int(), 2);
}

#[tokio::test]
async fn swallowed_requests_have_no_effect_and_swallowed_answers_have() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    let mut connection = connect(&proxy).await;
    for (dir, effect) in [(Dir::ToServer, 0), (Dir::ToClient, 1)] {
        proxy.set_mode(Mode::Swallow(dir));
        let call = timeout(NEVER, connection.call(&["INCR", "n"])).await;
        assert!(call.is_err(), "an answer came: {call:?}");
        redis.cli(&["SETNX", "n", "0"]).await;
        assert_eq!(redis.cli(&["GET", "n"]).await.int(), effect);
    }
}

#[tokio::test]
async fn what_is_held_arrives_when_the_network_heals() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    let mut connection = connect(&proxy).await;
    for dir in [Dir::ToServer, Dir::ToClient] {
        redis.cli(&["SET", "n", "0"]).await;
        proxy.set_mode(Mode::Hold(dir));
        let call = timeout(NEVER, connection.call(&["INCR", "n"])).await;
        assert!(call.is_err(), "an answer came: {call:?}");
        let done = if dir == Dir::ToServer { 0 } else { 1 };
        assert_eq!(redis.cli(&["GET", "n"]).await.int(), done);
        proxy.set_mode(Mode::Forward);
        assert_eq!(connection.read().await.unwrap().int(), 1);
    }
}

#[tokio::test]
async fn a_black_hole_accepts_and_never_answers_with_and_without_a_server() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    let mut early = connect(&proxy).await;
    assert_eq!(early.call(&["SET", "k", "v"]).await.unwrap(), ok());
    proxy.set_mode(Mode::BlackHole);
    let mut late = connect(&proxy).await;
    for connection in [&mut early, &mut late] {
        let call = timeout(NEVER, connection.call(&["SET", "k", "w"])).await;
        assert!(call.is_err(), "an answer came: {call:?}");
    }
    assert_eq!(redis.cli(&["GET", "k"]).await.text(), "v");
    redis.kill();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    assert!(timeout(NEVER, stream.read_u8()).await.is_err());
    // Without the hole it is what it is: nobody there.
    proxy.set_mode(Mode::Forward);
    let (received, end) = read_to_end(&mut stream).await;
    assert_eq!((received, end), (vec![], Some(ErrorKind::ConnectionReset)));
}

#[tokio::test]
async fn a_hook_can_cut_at_the_kth_answer_after_the_command_ran() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    proxy.on_frame(|dir, index, _| match (dir, index) {
        (Dir::ToClient, 3) => FrameAction::Cut,
        _ => FrameAction::Forward,
    });
    let mut connection = connect(&proxy).await;
    assert_eq!(connection.call(&["INCR", "n"]).await.unwrap().int(), 1);
    assert_eq!(connection.call(&["INCR", "n"]).await.unwrap().int(), 2);
    assert!(connection.call(&["INCR", "n"]).await.is_err());
    assert_eq!(redis.cli(&["GET", "n"]).await.int(), 3);
}

#[tokio::test]
async fn a_hook_can_drop_replace_answer_and_delay_single_frames() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    proxy.on_frame(|dir, _, frame| {
        if dir == Dir::ToClient {
            return FrameAction::Forward;
        }
        match frame.redis_command().as_deref() {
            Some("DEL") => FrameAction::Drop,
            Some("GET") => FrameAction::Replace(Bytes::from(command(&["ECHO", "replaced"]))),
            Some("SET") => FrameAction::ReplyWith(Bytes::from_static(b"+FAKE\r\n")),
            Some("PING") => FrameAction::Delay(NEVER),
            _ => FrameAction::Forward,
        }
    });
    let mut connection = connect(&proxy).await;
    let reply = connection.call(&["GET", "k"]).await.unwrap();
    assert_eq!(reply.text(), "replaced");
    let reply = connection.call(&["SET", "k", "v"]).await.unwrap();
    assert_eq!(reply, Value::Status("FAKE".to_owned()));
    assert!(redis.cli(&["GET", "k"]).await.is_nil());
    let began = Instant::now();
    assert_eq!(connection.call(&["PING"]).await.unwrap().text(), "PONG");
    assert!(began.elapsed() >= NEVER);
    let call = timeout(NEVER, connection.call(&["DEL", "k"])).await;
    assert!(call.is_err(), "an answer came: {call:?}");
    proxy.clear_hook();
    assert_eq!(connection.call(&["DEL", "k"]).await.unwrap().int(), 0);
}

#[tokio::test]
async fn a_hook_can_pass_a_whole_request_and_cut_behind_it() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    proxy.on_frame(|dir, _, frame| {
        let is_write = dir == Dir::ToServer && frame.contains(b"INCR");
        if is_write {
            FrameAction::CutAfter(usize::MAX)
        } else {
            FrameAction::Forward
        }
    });
    for round in 1..=20 {
        let mut connection = connect(&proxy).await;
        assert!(connection.call(&["INCR", "n"]).await.is_err());
        eventually(SOON, "the command runs all the same", async || {
            let value = redis.cli(&["GET", "n"]).await;
            let ran = !value.is_nil() && value.int() == round;
            if ran {
                Ok(())
            } else {
                Err(format!("{value:?}"))
            }
        })
        .await;
    }
}

#[tokio::test]
async fn severing_ends_what_is_open_as_asked_and_nothing_else() {
    let (_redis, proxy) = redis_behind_a_proxy().await;
    for (how, expected) in [
        (Sever::Reset, Some(ErrorKind::ConnectionReset)),
        (Sever::Fin, None),
    ] {
        let mut streams = Vec::new();
        for _ in 0..5 {
            let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
            stream.write_all(&command(&["PING"])).await.unwrap();
            let mut pong = [0; 7];
            stream.read_exact(&mut pong).await.unwrap();
            streams.push(stream);
        }
        proxy.sever_all(how);
        assert_eq!(proxy.counters().open, 0);
        for stream in &mut streams {
            let (received, end) = read_to_end(stream).await;
            assert_eq!((received, end), (vec![], expected));
        }
        let mut connection = connect(&proxy).await;
        assert_eq!(connection.call(&["PING"]).await.unwrap().text(), "PONG");
        drop(connection);
        proxy
            .wait_for(SOON, "the connection ends", |now| now.open == 0)
            .await;
    }
}

#[tokio::test]
async fn a_server_that_is_away_resets_and_another_can_take_its_place() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    redis.kill();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    let (_, end) = read_to_end(&mut stream).await;
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
    let other = PrivateRedis::start().await;
    proxy.set_upstream(other.address());
    let mut connection = connect(&proxy).await;
    assert_eq!(connection.call(&["PING"]).await.unwrap().text(), "PONG");
}

#[tokio::test]
async fn the_end_of_one_direction_is_passed_on() {
    let (_redis, proxy) = redis_behind_a_proxy().await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_all(&command(&["PING"])).await.unwrap();
    stream.shutdown().await.unwrap();
    let (received, end) = read_to_end(&mut stream).await;
    assert_eq!((received, end), (b"+PONG\r\n".to_vec(), None));
}

#[tokio::test]
async fn a_subscription_and_a_long_value_pass() {
    let (redis, proxy) = redis_behind_a_proxy().await;
    let mut subscriber = connect(&proxy).await;
    subscriber.call(&["SUBSCRIBE", "c"]).await.unwrap();
    assert_silent(&mut subscriber).await;
    let long = "x".repeat(3 << 20);
    redis.cli(&["PUBLISH", "c", &long]).await;
    let message = timeout(SOON, subscriber.read()).await.unwrap().unwrap();
    assert_eq!(message.list()[2].text().len(), long.len());
    assert_eq!(proxy.counters().malformed, 0);
}

use tokio_postgres::error::SqlState;

use crate::{Dir, FaultProxy, FrameAction, Framing, Mode, PrivatePostgres, Sever, TestDatabase};

#[tokio::test]
async fn a_database_lives_as_long_as_its_handle_and_its_server_can_crash() {
    let server = PrivatePostgres::start().await;
    let database = TestDatabase::create_in(&server).await;
    database
        .execute("CREATE TABLE t (n bigint, s text); INSERT INTO t VALUES (1, NULL), (2, 'x')")
        .await;
    assert_eq!(database.number("SELECT sum(n) FROM t").await, 3);
    let rows = database.texts("SELECT n, s FROM t ORDER BY n").await;
    assert_eq!(rows, [["1", ""], ["2", "x"]]);
    server.crash().await;
    assert!(
        tokio_postgres::connect(database.url(), tokio_postgres::NoTls)
            .await
            .is_err()
    );
    server.restart().await;
    let name = database.name().to_owned();
    let other = TestDatabase::create_in(&server).await;
    let exists = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    assert_eq!(other.number(&exists).await, 1);
    // An open connection does not keep it alive.
    let _client = database.client().await;
    drop(database);
    assert_eq!(other.number(&exists).await, 0);
}

#[tokio::test]
async fn the_proxy_frames_a_whole_session_and_can_lose_the_answer_to_a_commit() {
    let server = PrivatePostgres::start().await;
    let database = TestDatabase::create_in(&server).await;
    database.execute("CREATE TABLE t (n bigint)").await;
    let proxy = FaultProxy::start(database.server_addr(), Framing::Postgres).await;
    let url = database.url_via(proxy.port());
    for (lose_answer, expected) in [(true, 1), (false, 1)] {
        // The answer to COMMIT is lost in the first round, COMMIT itself in the second.
        proxy.on_frame(move |dir, _, frame| {
            let is_commit = dir == Dir::ToServer && frame.postgres_query() == Some("COMMIT");
            match (is_commit, lose_answer) {
                (true, true) => FrameAction::CutAfter(usize::MAX),
                (true, false) => FrameAction::Cut,
                _ => FrameAction::Forward,
            }
        });
        let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .unwrap();
        let driver = tokio::spawn(connection);
        let transaction = client.transaction().await.unwrap();
        transaction
            .execute("INSERT INTO t VALUES ($1)", &[&1_i64])
            .await
            .unwrap();
        let error = transaction.commit().await.unwrap_err();
        assert!(error.is_closed() || error.code().is_none(), "{error:?}");
        assert!(driver.await.unwrap().is_err());
        // The server finishes what it has received before it sees the end.
        crate::eventually(
            std::time::Duration::from_secs(10),
            "the session ends",
            async || {
                let query = "SELECT count(*) FROM pg_stat_activity
                          WHERE datname = current_database() AND pid <> pg_backend_pid()";
                match database.number(query).await {
                    0 => Ok(()),
                    others => Err(format!("{others} other sessions")),
                }
            },
        )
        .await;
        assert_eq!(database.number("SELECT count(*) FROM t").await, expected);
    }
    assert_eq!(proxy.counters().malformed, 0);
}

#[tokio::test]
async fn encryption_that_is_offered_and_declined_keeps_the_framing() {
    let server = PrivatePostgres::start().await;
    let proxy = FaultProxy::start(server.address(), Framing::Postgres).await;
    let mut stream = tokio::net::TcpStream::connect(proxy.addr()).await.unwrap();
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ssl_request = [0, 0, 0, 8, 4, 210, 22, 47];
    stream.write_all(&ssl_request).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'N');
    let mut startup = b"\0\0\0\0\0\x03\0\0user\0postgres\0database\0postgres\0\0".to_vec();
    let len = u32::try_from(startup.len()).unwrap();
    startup[..4].copy_from_slice(&len.to_be_bytes());
    stream.write_all(&startup).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'R');
    let counters = proxy.counters();
    assert_eq!((counters.malformed, counters.frames(Dir::ToServer)), (0, 2));
}

#[tokio::test]
async fn a_session_sees_a_cut_connection_and_a_refused_one() {
    let server = PrivatePostgres::start().await;
    let database = TestDatabase::create_in(&server).await;
    let proxy = FaultProxy::start(database.server_addr(), Framing::Postgres).await;
    let url = database.url_via(proxy.port());
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    let error = client.batch_execute("SELECT 1/0").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DIVISION_BY_ZERO));
    proxy.sever_all(Sever::Fin);
    assert!(
        client
            .batch_execute("SELECT 1")
            .await
            .unwrap_err()
            .is_closed()
    );
    let _ = driver.await.unwrap();
    proxy.set_mode(Mode::Refuse);
    assert!(
        tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .is_err()
    );
}

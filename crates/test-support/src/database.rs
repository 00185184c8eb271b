//! A database of one's own in a shared PostgreSQL cluster.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};
use rand::Rng;
use tokio_postgres::{Client, Config, NoTls};

use crate::fail::OrFail;
use crate::postgres::PrivatePostgres;
use crate::stack::TestStack;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A database that exists as long as its handle.
///
/// It is created in the shared stack, or in a [`PrivatePostgres`] when a test restarts the server.
/// The schema is the caller's: either migrate it after [`TestDatabase::create`], or let
/// [`TestDatabase::from_template`] migrate once per cluster and copy.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    admin_url: String,
    url: String,
}

impl TestDatabase {
    /// An empty database in the shared cluster.
    ///
    /// # Panics
    ///
    /// When it cannot be created.
    pub async fn create() -> Self {
        Self::create_at(TestStack::shared().database_url(), None)
            .await
            .or_fail("creating a test database")
    }

    /// An empty database in a cluster of the test's own.
    ///
    /// # Panics
    ///
    /// When it cannot be created.
    pub async fn create_in(server: &PrivatePostgres) -> Self {
        Self::create_at(&server.url(), None)
            .await
            .or_fail("creating a test database")
    }

    /// A copy of a template in the shared cluster. The first caller makes the template: an empty
    /// database that `prepare` gets the address of. Its name must change with what `prepare` does,
    /// for instance by a hash over the migrations.
    ///
    /// # Panics
    ///
    /// When the template or the copy cannot be created.
    pub async fn from_template<F>(template: &str, prepare: F) -> Self
    where
        F: AsyncFnOnce(String) -> anyhow::Result<()>,
    {
        let admin_url = TestStack::shared().database_url();
        let template = format!("seckill_template_{template}");
        let made = async {
            ensure_template(admin_url, &template, prepare).await?;
            Self::create_at(admin_url, Some(&template)).await
        };
        made.await
            .or_fail("creating a test database from a template")
    }

    async fn create_at(admin_url: &str, template: Option<&str>) -> anyhow::Result<Self> {
        let name = unique_name("seckill_test");
        let admin = connect(admin_url).await?;
        create_database(&admin, &name, template).await?;
        Ok(Self {
            url: with_database(admin_url, &name)?,
            name,
            admin_url: admin_url.to_owned(),
        })
    }

    /// Its address, `postgres://user:password@host:port/name`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address as seen through a proxy on a loopback port.
    ///
    /// # Panics
    ///
    /// Never for an address that [`Self::create`] has made.
    #[must_use]
    pub fn url_via(&self, port: u16) -> String {
        with_port(&self.url, port).or_fail("the address of a test database")
    }

    /// The address of its server.
    ///
    /// # Panics
    ///
    /// Never for an address that [`Self::create`] has made.
    #[must_use]
    pub fn server_addr(&self) -> std::net::SocketAddr {
        server_of(&self.url).or_fail("the address of a test database")
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection of its own, for looking and for making faults.
    ///
    /// # Panics
    ///
    /// When it cannot connect.
    pub async fn client(&self) -> Client {
        connect(&self.url)
            .await
            .or_fail("connecting to a test database")
    }

    /// The rows of a query as texts; NULL is an empty text. Cast in the query what is not text.
    ///
    /// # Panics
    ///
    /// When the query fails.
    pub async fn texts(&self, query: &str) -> Vec<Vec<String>> {
        query_texts(&self.url, query).await.or_fail("a query")
    }

    /// The single number that a query returns.
    ///
    /// # Panics
    ///
    /// When the query fails or returns anything else.
    pub async fn number(&self, query: &str) -> i64 {
        let rows = self.texts(query).await;
        match rows
            .first()
            .and_then(|row| row.first())
            .map(|text| text.parse())
        {
            Some(Ok(number)) => number,
            _ => panic!("expected a number from {query}, got {rows:?}"),
        }
    }

    /// Runs statements that return nothing.
    ///
    /// # Panics
    ///
    /// When one of them fails.
    pub async fn execute(&self, statements: &str) {
        self.client()
            .await
            .batch_execute(statements)
            .await
            .with_context(|| statements.to_owned())
            .or_fail("statements of a test");
    }
}

impl Drop for TestDatabase {
    /// On a thread of its own, since the test's runtime may be ending. A database that stays behind
    /// disturbs nobody; it goes with the stack.
    fn drop(&mut self) {
        let url = self.admin_url.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let dropped = std::thread::spawn(move || -> anyhow::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let admin = connect(&url).await?;
                Ok(admin.batch_execute(&statement).await?)
            })
        });
        match dropped.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("{} stays behind: {error:#}", self.name),
            Err(_) => eprintln!("{} stays behind", self.name),
        }
    }
}

/// The rows of a query as texts, over a connection of its own; NULL is an empty text. For a server that
/// may be away: [`TestDatabase::texts`] ends the test then.
///
/// # Errors
///
/// When the server cannot be reached or the query fails.
pub async fn query_texts(url: &str, query: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let messages = connect(url)
        .await?
        .simple_query(query)
        .await
        .with_context(|| query.to_owned())?;
    let mut rows = Vec::new();
    for message in messages {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            let texts = (0..row.len()).map(|column| row.get(column).unwrap_or("").to_owned());
            rows.push(texts.collect());
        }
    }
    Ok(rows)
}

/// Connects, and drives the connection in the background.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .context("connecting to PostgreSQL")?;
    tokio::spawn(async move {
        // Its user sees the error at the next statement.
        let _ = connection.await;
    });
    Ok(client)
}

/// Unique over processes and machines' restarts: part of it is random.
pub(crate) fn unique_name(prefix: &str) -> String {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let random = rand::rng().random::<u32>();
    format!("{prefix}_{}_{number}_{random:08x}", std::process::id())
}

async fn create_database(admin: &Client, name: &str, template: Option<&str>) -> anyhow::Result<()> {
    let template = template.unwrap_or("template1");
    admin
        .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {template}"))
        .await
        .with_context(|| format!("creating {name} from {template}"))
}

/// Makes a template once per cluster, under an advisory lock. It gets its name when it is complete,
/// so a test that died in between leaves none.
async fn ensure_template<F>(admin_url: &str, template: &str, prepare: F) -> anyhow::Result<()>
where
    F: AsyncFnOnce(String) -> anyhow::Result<()>,
{
    let plain = template
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    ensure!(plain && template.len() < 60, "{template} is no plain name");
    let admin = connect(admin_url).await?;
    // Held until this connection ends, also when the preparation fails.
    admin
        .execute("SELECT pg_advisory_lock(hashtext($1))", &[&template])
        .await
        .context("taking the lock of the template")?;
    let found = admin
        .query_opt("SELECT 1 FROM pg_database WHERE datname = $1", &[&template])
        .await?;
    if found.is_some() {
        return Ok(());
    }
    let unfinished = unique_name("seckill_unfinished");
    create_database(&admin, &unfinished, None).await?;
    prepare(with_database(admin_url, &unfinished)?)
        .await
        .context("preparing the template")?;
    // A connection of the preparation may still be closing, and would forbid the renaming.
    let close = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
    admin.execute(close, &[&unfinished]).await?;
    crate::eventually(
        std::time::Duration::from_secs(10),
        "the last connection to the template ends",
        async || {
            let rename = format!("ALTER DATABASE {unfinished} RENAME TO {template}");
            admin.batch_execute(&rename).await
        },
    )
    .await;
    Ok(())
}

fn with_database(url: &str, name: &str) -> anyhow::Result<String> {
    let (server, _) = url
        .rsplit_once('/')
        .context("an address that ends with a database")?;
    Ok(format!("{server}/{name}"))
}

fn server_of(url: &str) -> anyhow::Result<std::net::SocketAddr> {
    let config = Config::from_str(url).context("an address of PostgreSQL")?;
    let port = config.get_ports().first().context("a port")?;
    Ok(crate::loopback(*port))
}

fn with_port(url: &str, port: u16) -> anyhow::Result<String> {
    let old = format!("@127.0.0.1:{}/", server_of(url)?.port());
    ensure!(url.contains(&old), "the server is not at 127.0.0.1");
    Ok(url.replacen(&old, &format!("@127.0.0.1:{port}/"), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_change_only_where_they_should() {
        let url = "postgres://seckill:5432@127.0.0.1:25432/seckill";
        assert_eq!(
            with_database(url, "other").unwrap(),
            "postgres://seckill:5432@127.0.0.1:25432/other"
        );
        assert_eq!(
            with_port(url, 20_001).unwrap(),
            "postgres://seckill:5432@127.0.0.1:20001/seckill"
        );
        assert_eq!(server_of(url).unwrap().port(), 25_432);
    }
}

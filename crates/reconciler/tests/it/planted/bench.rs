//! A sale with purchases, and what damages them.

use seckill_integration_tests::{FrontClient, Plan, Sale, Sandbox};

use super::EACH;

/// A score that is due long after the test.
const FAR: &str = "4000000000000";

/// One purchase.
#[derive(Debug, Clone)]
pub struct Purchase {
    pub id: String,
    pub user: String,
    pub request: String,
}

/// What a person does about damage that no script mends: the test did it, and knows how to undo it.
#[derive(Debug, Default)]
pub struct ByHand {
    pub redis: Vec<Vec<String>>,
    pub postgres: Vec<String>,
}

impl ByHand {
    pub fn redis(&mut self, command: &[&str]) {
        let command = command.iter().map(ToString::to_string);
        self.redis.push(command.collect());
    }

    pub fn postgres(&mut self, statements: impl Into<String>) {
        self.postgres.push(statements.into());
    }

    pub async fn run(self, sandbox: &Sandbox) {
        for command in self.redis {
            sandbox.redis().cli(&command).await;
        }
        for statements in self.postgres {
            sandbox.database().execute(&statements).await;
        }
    }
}

/// A sale of one bucket, with purchases that are damaged once each.
pub struct Bench<'a> {
    pub sandbox: &'a Sandbox,
    pub sale: Sale,
    pub bought: Vec<Purchase>,
    next: usize,
    crafted: usize,
    expires: String,
}

impl<'a> Bench<'a> {
    pub async fn open(sandbox: &'a Sandbox, plan: &Plan) -> Self {
        let sale = sandbox.open(plan).await;
        let meta = sale.key(0, "meta");
        let until = ["HGET", &meta, "retention_until_ms"];
        let expires = sandbox.redis().cli(&until).await.text();
        Self {
            sandbox,
            sale,
            bought: Vec::new(),
            next: 0,
            crafted: 0,
            expires,
        }
    }

    /// Sells one unit each to so many buyers.
    pub async fn buy(&mut self, client: &FrontClient, count: usize) {
        let activity = self.sale.activity_id.clone();
        for number in 0..count {
            let (user, request) = (
                format!("{activity}-u{number}"),
                format!("{activity}-q{number}"),
            );
            let id = client.buy(&self.sale, &user, &request).await;
            self.bought.push(Purchase { id, user, request });
        }
    }

    /// The next purchases, each to be damaged once.
    pub fn take(&mut self) -> Vec<Purchase> {
        let taken = self.bought[self.next..self.next + EACH].to_vec();
        self.next += EACH;
        taken
    }

    pub fn key(&self, suffix: &str) -> String {
        self.sale.key(0, suffix)
    }

    pub fn resv(&self, id: &str) -> String {
        self.key(&format!("resv:{id}"))
    }

    pub fn marker(&self, user: &str) -> String {
        self.key(&format!("user:{user}"))
    }

    pub async fn redis(&self, command: &[&str]) {
        self.sandbox.redis().cli(command).await;
    }

    /// The two commands that move units between the counters, as the writes that a failover takes
    /// back would have.
    pub fn moving(&self, units: i64) -> [Vec<String>; 2] {
        [("reserved", units), ("available", -units)].map(|(field, by)| {
            ["HINCRBY", &self.key("stock"), field, &by.to_string()]
                .map(str::to_owned)
                .to_vec()
        })
    }

    pub async fn hold(&self, units: i64) {
        for command in self.moving(units) {
            self.sandbox.redis().cli(&command).await;
        }
    }

    pub async fn set(&self, id: &str, fields: &[&str]) {
        let key = self.resv(id);
        let mut command = vec!["HSET", key.as_str()];
        command.extend(fields);
        self.redis(&command).await;
    }

    pub async fn mark(&self, user: &str, id: &str) {
        let key = self.marker(user);
        self.redis(&["SET", &key, id, "PXAT", &self.expires]).await;
    }

    /// The command that [`Self::mark`] runs.
    pub fn marking(&self, user: &str, id: &str) -> Vec<String> {
        let marker = self.marker(user);
        let command = ["SET", &marker, id, "PXAT", &self.expires];
        command.map(str::to_owned).to_vec()
    }

    pub async fn unmark(&self, user: &str) {
        let key = self.marker(user);
        self.redis(&["DEL", &key]).await;
    }

    pub async fn index(&self, index: &str, id: &str) {
        let key = self.key(index);
        self.redis(&["ZADD", &key, FAR, id]).await;
        self.redis(&["PEXPIREAT", &key, &self.expires]).await;
    }

    pub async fn remember(&self, request: &str, packed: &str) {
        let shard = fnv1a_32(request.as_bytes()) % 256;
        let key = self.key(&format!("req:{shard:03}"));
        self.redis(&["HSET", &key, request, packed]).await;
    }

    /// A record that no script wrote, copied from a purchase under another id.
    pub async fn craft(&mut self, status: &str, further: &[&str]) -> Purchase {
        self.crafted += 1;
        let number = self.crafted;
        let crafted = Purchase {
            id: id('y', number),
            user: format!("crafted-{number}"),
            request: format!("cq{number}"),
        };
        // The last purchase's own record is whole.
        let source = self.resv(&self.bought[self.bought.len() - 1].id);
        let target = self.resv(&crafted.id);
        self.redis(&["COPY", &source, &target]).await;
        let message = format!("reserve-order:{}:v1", crafted.id);
        let mut fields = vec![
            "reservation_id",
            &crafted.id,
            "message_id",
            &message,
            "request_id",
            &crafted.request,
            "user_id",
            &crafted.user,
            "status",
            status,
            "order_id",
            "",
        ];
        fields.extend(further);
        self.set(&crafted.id, &fields).await;
        crafted
    }
}

/// A reservation id that no request derives: letters for the digits, filled up from the left.
pub fn id(fill: char, number: usize) -> String {
    let digits: String = format!("{number:03}")
        .bytes()
        .map(|digit| char::from(b'a' + digit - b'0'))
        .collect();
    let fill: String = std::iter::repeat_n(fill, 26 - digits.len()).collect();
    format!("{fill}{digits}")
}

/// The contract's hash of the shards, by its definition and not by the code under test.
fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

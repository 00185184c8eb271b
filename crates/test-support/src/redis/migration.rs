//! A slot that moves from one node of a cluster to another, step by step.
//!
//! While it moves, commands about its keys are answered `ASK`, `TRYAGAIN` or `MOVED`; a test chooses
//! which by how far it has moved.

use super::PrivateRedis;
use crate::resp::Value;

/// How many keys one step may move; a bucket of a test has fewer.
const KEYS_MAX: &str = "100000";

/// How long one key may take, in milliseconds.
const MOVE_MS: &str = "5000";

/// A slot on its way.
#[derive(Debug)]
pub struct SlotMigration<'a> {
    slot: String,
    source: &'a PrivateRedis,
    target: &'a PrivateRedis,
    others: Vec<&'a PrivateRedis>,
    target_id: String,
}

impl<'a> SlotMigration<'a> {
    /// Tells both nodes; nothing has moved yet.
    pub(super) async fn begin(
        slot: u16,
        source: &'a PrivateRedis,
        target: &'a PrivateRedis,
        others: Vec<&'a PrivateRedis>,
    ) -> Self {
        let id = async |node: &PrivateRedis| node.cli(&["CLUSTER", "MYID"]).await.text();
        let migration = Self {
            slot: slot.to_string(),
            source,
            target,
            others,
            target_id: id(target).await,
        };
        let source_id = id(source).await;
        migration.set(target, &["IMPORTING", &source_id]).await;
        let target_id = &migration.target_id;
        migration.set(source, &["MIGRATING", target_id]).await;
        migration
    }

    async fn set(&self, node: &PrivateRedis, what: &[&str]) {
        let mut command = vec!["CLUSTER", "SETSLOT", &self.slot];
        command.extend(what);
        let reply = node.cli(&command).await;
        assert_eq!(reply, Value::Status("OK".to_owned()), "{command:?}");
    }

    /// The slot's keys that have not moved yet.
    ///
    /// # Panics
    ///
    /// When the node does not answer.
    pub async fn keys(&self) -> Vec<String> {
        let command = ["CLUSTER", "GETKEYSINSLOT", &self.slot, KEYS_MAX];
        self.source.cli(&command).await.texts()
    }

    /// Moves some keys.
    ///
    /// # Panics
    ///
    /// When they cannot be moved.
    pub async fn move_keys(&self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let port = self.target.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", MOVE_MS, "KEYS"];
        command.extend(names.iter().map(String::as_str));
        let reply = self.source.cli(&command).await;
        assert_eq!(reply.error(), None, "moving {names:?}");
    }

    /// Moves what is left.
    ///
    /// # Panics
    ///
    /// When it cannot be moved.
    pub async fn move_all(&self) {
        self.move_keys(&self.keys().await).await;
    }

    /// Moves what is left and gives the slot to its new owner.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub async fn finish(self) {
        self.move_all().await;
        // The new owner first: between two answers there must be one that takes the slot.
        for node in [self.target, self.source]
            .into_iter()
            .chain(self.others.iter().copied())
        {
            self.set(node, &["NODE", &self.target_id]).await;
        }
    }
}

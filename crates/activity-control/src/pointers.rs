//! Whether buyers are pointed at the version that is on sale.

use std::collections::BTreeMap;
use std::fmt;

use seckill_lua_scripts::ErrorKind as RedisErrorKind;
use seckill_state_machine::{Activity, ActivityId, ActivityVersion};
use serde::Serialize;

use crate::Error;
use crate::control::Control;
use crate::lifecycle::on_sale;

/// An activity's pointer and where it must lead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PointerState {
    /// The activity.
    pub activity_id: ActivityId,
    /// The version on sale.
    pub wanted: ActivityVersion,
    /// Where the pointer leads, if there is one.
    pub found: Option<ActivityVersion>,
    /// What is wrong with a pointer that cannot be read.
    pub damage: Option<String>,
}

impl PointerState {
    /// Whether it leads where it must.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.found == Some(self.wanted)
    }
}

impl fmt::Display for PointerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is on sale, ", self.activity_id, self.wanted)?;
        match (&self.damage, self.found) {
            (Some(damage), _) => write!(f, "the pointer is damaged ({damage})"),
            (None, Some(found)) => write!(f, "the pointer names {found}"),
            (None, None) => f.write_str("there is no pointer"),
        }
    }
}

impl Control {
    /// The pointer of every activity of which one of these versions is on sale.
    ///
    /// # Errors
    /// Errors of Redis; a damaged pointer is no error but a state.
    pub async fn pointers(&self, activities: &[Activity]) -> Result<Vec<PointerState>, Error> {
        let mut by_id: BTreeMap<&ActivityId, Vec<Activity>> = BTreeMap::new();
        for activity in activities {
            let versions = by_id.entry(&activity.settings.scope.activity_id);
            versions.or_default().push(activity.clone());
        }
        let mut states = Vec::new();
        for (activity_id, versions) in by_id {
            let Some(current) = on_sale(&versions) else {
                continue;
            };
            let (found, damage) = match self.redis.current_version(activity_id).await {
                Ok(found) => (found, None),
                Err(error) if error.kind() == RedisErrorKind::Broken => {
                    (None, Some(error.to_string()))
                }
                Err(error) => return Err(error.into()),
            };
            states.push(PointerState {
                activity_id: activity_id.clone(),
                wanted: current.settings.scope.version,
                found,
                damage,
            });
        }
        Ok(states)
    }
}

use super::*;

const FIVE_MINUTES: Duration = Duration::from_secs(300);

fn all(seed: u64, seconds: u64) -> Vec<Planned> {
    faults(plan(seed, Duration::from_secs(seconds), &Kind::ALL))
}

fn faults(rounds: Vec<Round>) -> Vec<Planned> {
    let lanes = rounds.into_iter().flat_map(BTreeMap::into_values);
    lanes.flatten().collect()
}

fn shares(faults: &[Planned]) -> BTreeMap<Kind, usize> {
    let mut shares = BTreeMap::new();
    for fault in faults {
        *shares.entry(fault.action.kind()).or_default() += 1;
    }
    shares
}

#[test]
fn the_same_seed_makes_the_same_plan_and_another_seed_another() {
    assert_eq!(
        plan(1, FIVE_MINUTES, &Kind::ALL),
        plan(1, FIVE_MINUTES, &Kind::ALL)
    );
    assert_ne!(
        plan(1, FIVE_MINUTES, &Kind::ALL),
        plan(2, FIVE_MINUTES, &Kind::ALL)
    );
}

#[test]
fn every_kind_has_its_share_of_short_and_long_runs() {
    for seconds in [10, 40, 60, 300, 1_800] {
        for seed in 0..20 {
            let faults = all(seed, seconds);
            let shares = shares(&faults);
            assert_eq!(shares.len(), Kind::ALL.len(), "{shares:?}");
            for (kind, count) in shares {
                assert!(count * 20 >= faults.len(), "{kind:?}: {count}");
            }
        }
    }
}

#[test]
fn five_minutes_have_a_fifth_more_than_two_hundred() {
    assert!(all(1, 300).len() >= 240, "{}", all(1, 300).len());
    assert!(all(1, 45).len() >= 25, "{}", all(1, 45).len());
}

#[test]
fn a_lane_is_in_order_and_within_the_run() {
    for seed in 0..20 {
        let mut lanes: BTreeMap<Lane, Vec<Planned>> = BTreeMap::new();
        for round in plan(seed, FIVE_MINUTES, &Kind::ALL) {
            for (lane, faults) in round {
                lanes.entry(lane).or_default().extend(faults);
            }
        }
        for faults in lanes.into_values() {
            assert!(faults.is_sorted_by_key(|fault| fault.at));
            assert!(faults.iter().all(|fault| fault.at < FIVE_MINUTES));
        }
    }
}

#[test]
fn every_replica_is_hit_and_every_link_in_every_way() {
    let faults = all(3, 300);
    let replicas: std::collections::BTreeSet<usize> = faults
        .iter()
        .filter_map(|fault| match fault.action {
            Action::Kill { replica } | Action::Pause { replica } => Some(replica),
            _ => None,
        })
        .collect();
    assert_eq!(replicas, (0..REPLICAS * SERVICES).collect());
    let ways: std::collections::BTreeSet<(Kind, &str)> = faults
        .iter()
        .filter(|fault| matches!(fault.action, Action::Link(..)))
        .map(|fault| (fault.action.kind(), fault.action.way()))
        .collect();
    assert_eq!(ways.len(), 3 * Way::ALL.len());
}

#[test]
fn only_the_wanted_kinds_are_planned() {
    let faults = faults(plan(1, FIVE_MINUTES, &[Kind::Kill, Kind::Replay]));
    let kinds: Vec<Kind> = shares(&faults).into_keys().collect();
    assert_eq!(kinds, [Kind::Kill, Kind::Replay]);
    assert!(Kind::parse("redis_failover").is_ok() && Kind::parse("earthquake").is_err());
}

//! Repairs of damaged copies by a scrub, and stops meanwhile.

use atoll_sim::{Answer, PG, Script, write_blocks};
use atoll_types::ObjectName;

use crate::catching_up::{is_active, staged, two_copies};
use crate::{SECOND, holds, written};

/// Processes die after each of these numbers of steps.
const STEPS: usize = 120;

/// A PG of two copies; the one at `bad` gets a good copy of an object of several parts.
fn repairing(bad: usize) -> Script {
    let (mut script, _) = two_copies();
    written(&mut script, 1, 11);
    let op = script.start(0, write_blocks(0, 7, 10));
    script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    script.run_for(SECOND);
    // A block behind the first rots, so the first is read from the copy as it is.
    let object = ObjectName::new("object0").expect("the name is short");
    script.damaged.insert(object.clone());
    while !staged(&script, bad).0 {
        // Now and then the object goes in one part.
        script.members[bad].store.bad.insert((object.clone(), 6));
        let scrubs = script.statistics.scrubs;
        script.scrub(PG, true);
        script.run_while("not scrubbed", |world| !staged(world, bad).0 && world.statistics.scrubs == scrubs);
    }
    script
}

#[test]
fn a_repair_that_is_interrupted_leaves_the_copy_as_it_was() {
    for bad in [0, 1] {
        let mut interrupted = 0;
        for count in 0..STEPS {
            let mut script = repairing(bad);
            assert_eq!(script.primary(), 0);
            let repairs = script.statistics.scrub_repairs;
            (0..count).for_each(|_| _ = script.next_step());
            if script.statistics.scrub_repairs > repairs {
                break;
            }
            interrupted += 1;
            // The other copy is lost for good, and the process of this one starts again.
            script.kill(1 - bad);
            script.kill(bad);
            script.restart(bad);
            script.run_while("it does not serve", |world| !is_active(world, bad));
            holds(&mut script, 0, 10);
            written(&mut script, 1, 12);
            script.finish();
        }
        assert!((5..STEPS).contains(&interrupted), "{interrupted} steps of {bad} were interrupted");
    }
}

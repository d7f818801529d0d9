//! Lines on their way to the thread that writes them: one text, so that a line costs no allocation, and no call of the
//! kernel while the thread gathers lines.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that wait until they are written.
pub(crate) const WAITING_MAX: usize = 16_384;
/// Those of them that are about strangers: these never make others wait.
const STRANGERS_WAITING_MAX: usize = WAITING_MAX / 4;
/// Bytes of them; a longer line waits until there are no others.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Lines that come this long after another are written with it: each call of the kernel costs more than a line.
const GATHER_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of lines that are written at once.
pub(crate) const GATHERED_BYTES: usize = 256 << 10;
/// Memory that is kept for lines to come.
const KEPT_BYTES: usize = 1 << 20;

/// Lines, one behind the other, each with a room.
pub(crate) struct Lines<R> {
    text: String,
    /// Where each ends, and its room.
    ends: Vec<(usize, R)>,
    strangers: usize,
}

impl<R> Default for Lines<R> {
    fn default() -> Self {
        Lines { text: String::new(), ends: Vec::new(), strangers: 0 }
    }
}

impl<R: Copy> Lines<R> {
    pub fn iter(&self) -> impl Iterator<Item = (&str, R)> {
        let mut begin = 0;
        self.ends.iter().map(move |(end, room)| (&self.text[std::mem::replace(&mut begin, *end)..*end], *room))
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.strangers = 0;
        self.text.shrink_to(KEPT_BYTES);
        self.ends.shrink_to(KEPT_BYTES / size_of::<(usize, R)>());
    }

    fn push(&mut self, line: &str, room: R) {
        self.text.push_str(line);
        self.ends.push((self.text.len(), room));
    }

    fn has_room(&self, line: &str) -> bool {
        let fits = self.text.len() + line.len() <= WAITING_BYTES_MAX || self.ends.is_empty();
        fits && self.ends.len() < WAITING_MAX
    }
}

struct State<R> {
    lines: Lines<R>,
    /// Bytes of lines at which the thread is woken, if it sleeps.
    wakes_at_bytes: Option<usize>,
    /// No more lines are added.
    is_closed: bool,
    /// Lines are not taken any more.
    is_left: bool,
    adders_waiting: usize,
}

/// Result of adding a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It waits until it is written.
    Waits,
    /// It has no room.
    Full,
    /// The thread that would write it is gone.
    Left,
}

pub(crate) struct Queue<R> {
    state: Mutex<State<R>>,
    has_lines: Condvar,
    has_room: Condvar,
}

impl<R: Copy> Queue<R> {
    pub fn new() -> Self {
        let state = State {
            lines: Lines::default(),
            wakes_at_bytes: None,
            is_closed: false,
            is_left: false,
            adders_waiting: 0,
        };
        Queue { state: Mutex::new(state), has_lines: Condvar::new(), has_room: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // Lines are added whole, in calls that can only fail for lack of memory, which ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, once it has room.
    pub fn add(&self, line: &str, room: R) -> Added {
        let mut state = self.lock();
        while !state.is_left && !state.lines.has_room(line) {
            state.adders_waiting += 1;
            state = self.has_room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.adders_waiting -= 1;
        }
        self.push(state, line, room)
    }

    /// Adds a line about a stranger, if it has room.
    pub fn add_of_stranger(&self, line: &str, room: R) -> Added {
        let mut state = self.lock();
        let has_room = state.lines.strangers < STRANGERS_WAITING_MAX && state.lines.has_room(line);
        if !has_room && !state.is_left {
            return Added::Full;
        }
        state.lines.strangers += 1;
        self.push(state, line, room)
    }

    fn push(&self, mut state: MutexGuard<'_, State<R>>, line: &str, room: R) -> Added {
        if state.is_left {
            return Added::Left;
        }
        state.lines.push(line, room);
        let bytes = state.lines.text.len();
        if state.wakes_at_bytes.take_if(|at| bytes >= *at).is_some() {
            drop(state);
            self.has_lines.notify_one();
        }
        Added::Waits
    }

    /// No more lines are added.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.has_lines.notify_one();
    }

    /// Lines are not taken any more.
    pub fn leave(&self) {
        self.lock().is_left = true;
        self.has_room.notify_all();
    }

    /// Waits for lines until `until`, and a moment for more, and takes them. False if none will come.
    pub fn take(&self, until: Instant, taken: &mut Lines<R>) -> bool {
        taken.clear();
        let state = self.wait(self.lock(), until, 1);
        let gathered = Instant::now() + GATHER_PAUSE;
        let mut state =
            if state.lines.ends.is_empty() { state } else { self.wait(state, gathered, GATHERED_BYTES) };
        std::mem::swap(&mut state.lines, taken);
        if state.adders_waiting > 0 {
            self.has_room.notify_all();
        }
        !state.is_closed || !taken.ends.is_empty()
    }

    /// Waits until there are as many bytes of lines, or no more will come, or until a time.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<R>>,
        until: Instant,
        bytes: usize,
    ) -> MutexGuard<'a, State<R>> {
        while state.lines.text.len() < bytes && !state.is_closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.wakes_at_bytes = Some(bytes);
            state = self.has_lines.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.wakes_at_bytes = None;
        state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::rooms::Room;

    fn taken(queue: &Queue<Room>) -> Vec<(String, Room)> {
        let mut lines = Lines::default();
        queue.take(Instant::now(), &mut lines);
        lines.iter().map(|(line, room)| (line.to_owned(), room)).collect()
    }

    #[test]
    fn lines_come_in_order_with_their_rooms() {
        let queue = Queue::new();
        assert_eq!(queue.add("one\n", Room::Requests), Added::Waits);
        assert_eq!(queue.add_of_stranger("two\n", Room::Strangers), Added::Waits);
        assert_eq!(queue.add("", Room::Changes), Added::Waits);
        let expected = [("one\n", Room::Requests), ("two\n", Room::Strangers), ("", Room::Changes)];
        assert_eq!(taken(&queue), expected.map(|(line, room)| (line.to_owned(), room)));
        assert_eq!(taken(&queue), []);
    }

    #[test]
    fn strangers_have_a_part_of_the_room_and_never_wait() {
        let queue = Queue::new();
        let added =
            (0..WAITING_MAX).filter(|_| queue.add_of_stranger("x\n", Room::Strangers) == Added::Waits).count();
        assert_eq!(added, STRANGERS_WAITING_MAX);
        (added..WAITING_MAX).for_each(|_| assert_eq!(queue.add("y\n", Room::Requests), Added::Waits));
        assert_eq!(queue.add_of_stranger("x\n", Room::Strangers), Added::Full);
        assert_eq!(taken(&queue).len(), WAITING_MAX);
        assert_eq!(queue.add_of_stranger("x\n", Room::Strangers), Added::Waits);
    }

    #[test]
    fn others_wait_until_there_is_room() {
        for line in ["x".repeat(WAITING_BYTES_MAX + 1), "x".repeat(WAITING_BYTES_MAX / 3 + 1)] {
            let queue = Arc::new(Queue::new());
            let adder = Arc::clone(&queue);
            let thread = std::thread::spawn(move || (0..9).map(|_| adder.add(&line, Room::Requests)).collect());
            let mut lines = Lines::default();
            let mut count = 0;
            while count < 9 {
                queue.take(Instant::now() + Duration::from_secs(20), &mut lines);
                assert!(lines.text.len() <= WAITING_BYTES_MAX || lines.ends.len() == 1, "{}", lines.ends.len());
                assert!(!lines.ends.is_empty(), "a line comes in 20 s");
                count += lines.ends.len();
            }
            let added: Vec<Added> = thread.join().unwrap();
            assert_eq!(added, [Added::Waits; 9]);
        }
    }

    #[test]
    fn a_closed_queue_gives_its_last_lines_and_one_that_was_left_takes_none() {
        let queue = Queue::new();
        queue.add("last\n", Room::Requests);
        queue.close();
        let mut lines = Lines::default();
        let later = Instant::now() + Duration::from_secs(3_600);
        assert!(queue.take(later, &mut lines), "without waiting");
        assert_eq!(lines.ends.len(), 1);
        assert!(!queue.take(later, &mut lines));
        queue.leave();
        assert_eq!(queue.add("more\n", Room::Requests), Added::Left);
        assert_eq!(queue.add_of_stranger("more\n", Room::Strangers), Added::Left);
    }

    #[test]
    fn much_text_is_not_gathered_any_longer() {
        let queue = Arc::new(Queue::new());
        let adder = Arc::clone(&queue);
        let thread = std::thread::spawn(move || {
            for _ in 0..1_000 {
                adder.add(&"x".repeat(1 << 10), Room::Requests);
            }
        });
        let (mut lines, mut count) = (Lines::default(), 0);
        while count < 1_000 {
            queue.take(Instant::now() + Duration::from_secs(20), &mut lines);
            count += lines.ends.len();
        }
        thread.join().unwrap();
        assert!(lines.text.capacity() <= 2 * KEPT_BYTES);
    }
}

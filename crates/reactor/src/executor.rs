//! A minimal executor for futures that stay on the loop's thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct ReadyQueue(Mutex<Vec<u64>>);

impl ReadyQueue {
    fn push(&self, id: u64) {
        self.0.lock().expect("no task panics while the queue is locked").push(id);
    }

    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.0.lock().expect("no task panics while the queue is locked"))
    }
}

struct TaskWaker {
    id: u64,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.id);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.id);
    }
}

#[derive(Default)]
struct Inner {
    next_id: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, (Option<Task>, Waker)>>,
    ready: Arc<ReadyQueue>,
}

/// Runs futures on the thread that polls it. Tasks must only be woken from this thread, or by
/// something that also wakes the loop.
#[derive(Clone, Default)]
pub struct LocalExecutor(Rc<Inner>);

impl LocalExecutor {
    /// Adds a task; it is polled at the next [`LocalExecutor::run_ready`].
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let id = self.0.next_id.get();
        self.0.next_id.set(id + 1);
        let waker = Waker::from(Arc::new(TaskWaker { id, ready: Arc::clone(&self.0.ready) }));
        self.0.tasks.borrow_mut().insert(id, (Some(Box::pin(task)), waker));
        self.0.ready.push(id);
    }

    /// Polls every task that was woken, until none is.
    pub fn run_ready(&self) {
        loop {
            let ready = self.0.ready.take();
            if ready.is_empty() {
                return;
            }
            ready.into_iter().for_each(|id| self.poll(id));
        }
    }

    fn poll(&self, id: u64) {
        // The task is taken out while it runs, because it may spawn others.
        let taken =
            self.0.tasks.borrow_mut().get_mut(&id).and_then(|(task, waker)| Some((task.take()?, waker.clone())));
        let Some((mut task, waker)) = taken else { return };
        let is_done = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut tasks = self.0.tasks.borrow_mut();
        if is_done {
            tasks.remove(&id);
        } else if let Some((slot, _)) = tasks.get_mut(&id) {
            *slot = Some(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_wait_and_spawn() {
        let executor = LocalExecutor::default();
        let (sender, receiver) = futures::channel::oneshot::channel::<u32>();
        let result = Rc::new(Cell::new(0));
        let seen = Rc::clone(&result);
        let inner = executor.clone();
        executor.spawn(async move {
            let value = receiver.await.unwrap();
            inner.spawn(async move { seen.set(value) });
        });
        executor.run_ready();
        assert_eq!(result.get(), 0);
        sender.send(7).unwrap();
        executor.run_ready();
        assert_eq!(result.get(), 7);
    }
}

//! Authentication of hosts: the exchange on a connection before it is a queue.

use std::rc::Rc;

use atoll_credentials::nvme::HostSecrets;
use atoll_security_log::{SecurityEvent, note};
use bytes::{Bytes, BytesMut};

use crate::connection::Connection;
use crate::protocol::{Authentication, CloseReason, CommandId, ConnectRequest, Progress, Response, Status};
use crate::target::ControllerNumber;

/// A connection of a host that has yet to prove itself.
pub(crate) struct Unproved {
    request: ConnectRequest,
    /// Number of the controller that was announced to the host.
    number: ControllerNumber,
    /// None while a message is being looked at.
    authentication: Option<Box<Authentication>>,
}

impl Connection {
    /// Requires authentication of the host. Nothing is opened for it before it has.
    pub(crate) async fn begin_authentication(self: &Rc<Self>, request: ConnectRequest, secrets: HostSecrets) {
        let announced = self.target.announce(&request, &self.client(&request), self.is_secured()).await;
        if self.is_over() {
            return;
        }
        match announced {
            Err(refusal) => self.session.borrow_mut().connected(Err(refusal)),
            Ok(number) => {
                let controller_id = number.get();
                let (host, subsystem) = (request.host.clone(), request.subsystem.clone());
                let authentication = Some(Box::new(Authentication::new(secrets, host, subsystem)));
                self.unproved.replace(Some(Unproved { request, number, authentication }));
                self.session.borrow_mut().require_authentication(controller_id);
            }
        }
        self.go_on();
    }

    fn take_authentication(&self) -> Option<Box<Authentication>> {
        self.unproved.borrow_mut().as_mut()?.authentication.take()
    }

    fn put_back(&self, authentication: Box<Authentication>) {
        if let Some(unproved) = &mut *self.unproved.borrow_mut() {
            unproved.authentication = Some(authentication);
        }
    }

    /// Authentication Send: a message of the host has come.
    pub(crate) async fn authentication_send(self: Rc<Self>, id: CommandId, message: Bytes) {
        let Some(mut authentication) = self.take_authentication() else {
            return self.complete(id, Response::of(Status::CommandSequence));
        };
        // It takes a processor for some milliseconds, in which this thread serves others.
        let taken = self.target.exports.bridge().run(async move {
            authentication.take(&message);
            authentication
        });
        let authentication = taken.await;
        self.answer_authentication(id, authentication, Response::of(Status::Success)).await;
    }

    /// Authentication Receive: the host asks for the next message.
    pub(crate) async fn authentication_receive(self: Rc<Self>, id: CommandId, length_bytes: usize) {
        let Some(mut authentication) = self.take_authentication() else {
            return self.complete(id, Response::of(Status::CommandSequence));
        };
        let response = match authentication.fetch() {
            None => Response::of(Status::CommandSequence),
            Some(message) if message.len() > length_bytes => Response::of(Status::DataLengthInvalid),
            Some(message) => {
                let mut padded = BytesMut::from(&message[..]);
                padded.resize(length_bytes, 0);
                Response::data(padded.freeze())
            }
        };
        self.answer_authentication(id, authentication, response).await;
    }

    async fn answer_authentication(
        self: &Rc<Self>,
        id: CommandId,
        authentication: Box<Authentication>,
        response: Response,
    ) {
        match authentication.progress() {
            Progress::UnderWay => {
                self.put_back(authentication);
                self.complete(id, response);
            }
            Progress::Failed(failure) => {
                let host = self.unproved.take().map(|unproved| unproved.request.host).unwrap_or_default();
                let why = format!("NVMe host {host}: {failure}");
                note(SecurityEvent::FailedNvmeAuthentication, self.transport.peer_address(), why);
                self.end_with(id, response, CloseReason::NotAuthenticated(failure));
            }
            Progress::Done => self.let_in(id, response).await,
        }
    }

    /// Admits an authenticated host: its connection is a queue now.
    async fn let_in(self: &Rc<Self>, id: CommandId, response: Response) {
        let Some(Unproved { request, number, .. }) = self.unproved.take() else { return };
        match self.join(&request, Some(number.get())).await {
            Ok((_, namespace)) => {
                self.session.borrow_mut().authenticated(namespace);
                self.complete(id, response);
            }
            Err(refusal) => {
                let reason = CloseReason::RefusedAuthenticated(refusal.status);
                self.end_with(id, Response::of(refusal.status), reason);
            }
        }
    }

    fn end_with(self: &Rc<Self>, id: CommandId, response: Response, reason: CloseReason) {
        self.session.borrow_mut().complete(id, response);
        self.session.borrow_mut().give_up(reason);
        self.go_on();
    }
}

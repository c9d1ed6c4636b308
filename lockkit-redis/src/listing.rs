//! Listings of locks, registers and namespaces: by scans, since an index would cost every lock a write.

use futures_util::future::try_join_all;
use lockkit_core::driver::{RegisterKey, Version};
use lockkit_core::state::{
    Cursor, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{Error, Key, Name, Namespace, Space};
use redis::Value;

use crate::error::Foreign;
use crate::inner::RedisInner;
use crate::{decode, keys, script};

impl RedisInner {
    /// The names of a page are those that a scan found. Their locks may be free by now, so a page may
    /// have less than was asked for.
    pub(crate) async fn page(&self, request: &ListRequest) -> Result<Page, Error> {
        let ListRequest { namespace, prefix, .. } = request;
        let spaces = [Space::Lock, Space::Semaphore].into_iter();
        let spaces: Vec<_> =
            spaces.filter(|space| request.space.is_none_or(|only| only == *space)).collect();
        let pattern = |space: &Space| keys::pattern(keys::word(*space), namespace, prefix);
        let patterns = spaces.iter().map(pattern).collect();
        let read = |key: &str| {
            let name = |space| Some((space, keys::name_in(key, keys::word(space), namespace)?));
            let found = spaces.iter().find_map(|space| name(*space));
            found.filter(|(_, name)| name.as_str().starts_with(prefix))
        };
        let after = request.after.as_ref().map(Cursor::decode).transpose()?;
        let names = &self.listing.locks;
        let ListPage { items, more } =
            names.page(&self.transport, patterns, read, after.as_ref(), request.limit).await?;
        let keys: Vec<_> = items
            .into_iter()
            .map(|(space, name)| Key::new(namespace.clone(), space, name))
            .collect();
        let next = keys.last().filter(|_| more).map(Cursor::behind);
        let states = try_join_all(keys.iter().map(|key| self.state_of(key))).await?;
        Ok(Page { states: states.into_iter().filter(|state| !state.is_free()).collect(), next })
    }

    /// One lock of a page: a key that is not lockkit's costs no other its entry there.
    async fn state_of(&self, key: &Key) -> Result<LockState, Error> {
        let state = self.inspect(key).await;
        state.or_else(|error| match Foreign::why(&error) {
            Some(why) => Ok(LockState::damaged(key.clone(), why)),
            None => Err(error),
        })
    }

    pub(crate) async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let none: [&str; 0] = [];
        let answer = self.run(&script::INSPECT, &[&keys::lock(key).0], &none).await?;
        let (queue, last_break) = decode::queue(answer)?;
        Ok(LockState::new(key.clone(), queue, last_break))
    }

    pub(crate) async fn page_of_registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<ListPage<RegisterState>, Error> {
        let RegisterRequest { namespace, prefix, .. } = request;
        let read = |key: &str| {
            let name = keys::name_in(key, keys::REGISTER, namespace);
            name.filter(|name| name.as_str().starts_with(prefix))
        };
        let mut after = request.after.clone();
        loop {
            let patterns = vec![keys::pattern(keys::REGISTER, namespace, prefix)];
            let names = &self.listing.registers;
            let ListPage { items, more } =
                names.page(&self.transport, patterns, read, after.as_ref(), request.limit).await?;
            let states = items.iter().map(|name| self.inspect_register(namespace, name));
            let states: Vec<_> = try_join_all(states).await?.into_iter().flatten().collect();
            if !states.is_empty() || !more {
                return Ok(ListPage { items: states, more });
            }
            after = items.into_iter().next_back(); // deleted or over, all of them
        }
    }

    /// A register without its value; `None` when there is none.
    async fn inspect_register(
        &self,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Option<RegisterState>, Error> {
        let at = RegisterKey { namespace: namespace.clone(), name: name.clone() };
        let none: [&str; 0] = [];
        let damaged =
            |why| RegisterState::new(name.clone(), Version(0), None, 0).with_damage(Some(why));
        let answer = match self.run(&script::INSPECT_REGISTER, &[&keys::register(&at)], &none).await
        {
            Ok(Value::Int(0)) => return Ok(None),
            Err(error) => {
                return Ok(Some(damaged(Foreign::why(&error).ok_or(error)?)));
            }
            Ok(answer) => answer,
        };
        let items = decode::array(answer)?;
        let number = |at: usize| u64::try_from(decode::number(items.get(at)?)?).ok();
        let state = || {
            let bytes = usize::try_from(number(0)?).ok()?;
            let (version, token) = (Version(number(1)?), decode::token(items.get(2)?));
            Some(RegisterState::new(name.clone(), version, token, bytes))
        };
        state().map(Some).ok_or_else(|| decode::unexpected(&Value::Array(items.clone())))
    }

    pub(crate) async fn page_of_namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        let patterns = vec![keys::ANYTHING.to_owned()];
        let names = &self.listing.namespaces;
        names.page(&self.transport, patterns, keys::namespace_in, after, limit).await
    }
}

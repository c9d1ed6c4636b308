//! The grammar of the URLs of buckets and tables: `SCHEME://NAME/PREFIX?…`.

use std::collections::BTreeMap;
use std::env;

use lockkit_core::driver::split_query;
use lockkit_core::{Error, Result};

use crate::options::StoreOptions;

/// Room for lockkit's keys in the 1,024 bytes that all services have.
const LONGEST_PREFIX: usize = 800;

/// What is particular in the URLs of a service.
pub struct UrlForm {
    pub scheme: &'static str,
    /// What such a bucket or table is called, in a sentence.
    pub what: &'static str,
    /// What a URL looks like, in a sentence.
    pub form: &'static str,
    /// Where credentials go, since a URL has no place for them.
    pub login: &'static str,
    /// Which characters names have, beyond letters and digits.
    pub signs: &'static str,
    /// Its options, beyond `endpoint` and those of all stores.
    pub options: &'static [&'static str],
}

/// A bucket or table, and where it is.
#[derive(Clone, Debug)]
pub struct ServiceUrl {
    /// Of the bucket or table.
    pub name: String,
    /// What stands before all keys, without a slash at its ends; empty for none.
    pub prefix: String,
    /// A server in the place of the service's own, without a slash at its end.
    pub endpoint: Option<String>,
    /// The options that only this service has.
    own: BTreeMap<&'static str, String>,
    pub store: StoreOptions,
}

impl ServiceUrl {
    /// No I/O.
    pub(crate) fn parse(url: &str, form: &UrlForm) -> Result<Self> {
        let (place, options) = split_query(url);
        let place = place.strip_prefix(form.scheme).and_then(|rest| rest.strip_prefix("://"));
        let place = place.unwrap_or_default();
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        if name.contains('@') {
            let message =
                format!("the URL of {} has no place for credentials: {}", form.what, form.login);
            return Err(Error::Config(message));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || form.signs.contains(c);
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(Error::config(form.form));
        }
        let prefix = prefix.trim_end_matches('/');
        let is_valid = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_valid);
        if !prefix.is_empty() && (prefix.len() > LONGEST_PREFIX || !prefix.split('/').all(is_part))
        {
            let message = format!(
                "the prefix of the keys in a bucket has at most {LONGEST_PREFIX} bytes: letters, digits, \
                 dots, dashes and underscores, with single slashes between"
            );
            return Err(Error::Config(message));
        }
        let mut parsed = Self {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: None,
            own: BTreeMap::new(),
            store: StoreOptions::default(),
        };
        for option in options {
            let own = form.options.iter().find(|own| **own == option.name);
            if let Some(own) = own {
                parsed.own.insert(own, option.decoded()?.into_owned());
            } else if option.name == "endpoint" {
                parsed.endpoint = Some(endpoint(&option.decoded()?)?);
            } else if !parsed.store.take(&option)? {
                let own: String = form.options.iter().map(|name| format!("{name}, ")).collect();
                let message = format!(
                    "{} is no option of {} (there are: {own}endpoint, {})",
                    option.name,
                    form.what,
                    StoreOptions::NAMES
                );
                return Err(Error::Config(message));
            }
        }
        Ok(parsed)
    }

    /// The value of an option that only this service has.
    pub(crate) fn own(&self, name: &str) -> Option<&str> {
        self.own.get(name).map(String::as_str)
    }
}

fn endpoint(text: &str) -> Result<String> {
    let endpoint = text.trim_end_matches('/');
    if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
        let message =
            "endpoint= begins with https://, or with http:// for a server on a trusted network";
        return Err(Error::config(message));
    }
    Ok(endpoint.to_owned())
}

/// The first of these environment variables that is set, and not empty.
pub(crate) fn first_set(names: &[&str]) -> Option<String> {
    names.iter().filter_map(|name| env::var(name).ok()).find(|value| !value.is_empty())
}

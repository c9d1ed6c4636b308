//! `serve`: a lock service over HTTP on a backend, until it is asked to end.

use std::net::IpAddr;

use lockkit::Error;
use lockkit_server::{
    AccessTokens, Listen, NewToken, Service, ServiceSettings, TerraformSettings, Tls,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::BackendArgs;
use crate::args::serve::{ServeArgs, ServeVerb, TokenArgs};
use crate::backend::Backend;
use crate::exit::{ExitError, code};
use crate::output;
use crate::run::signals::Signals;

pub(crate) async fn serve(args: &ServeArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    if let Some(ServeVerb::Token(args)) = &args.verb {
        return token(args);
    }
    if backend.namespace.is_some() {
        let sentence = "serve takes no --namespace: every client sends its own";
        return Err(ExitError::usage(sentence));
    }
    let mut signals = Signals::ending()?;
    raise_limit();
    let tls = certificates(args)?;
    let settings = settings(args, tls.is_some())?;
    let chosen = Backend::choose(backend)?;
    let locks = chosen.connect().await?;
    let service = Service::with(locks.driver().clone(), settings)?;
    if !service.keeps_terraform_states() {
        let shown = chosen.url_without_passwords();
        output::note(format!("{shown} has no registers, so states of Terraform are refused"));
    }
    let (stop, stopping) = watch::channel(());
    let mut servers = JoinSet::new();
    for place in &args.listen {
        let cannot = |e| ExitError::new(code::OS, format!("cannot listen at {place}: {e}"));
        let mut listener = place.open().await.map_err(cannot)?;
        if let Some(tls) = &tls {
            listener = listener.with_tls(tls);
        }
        let url = listener.url().map_err(cannot)?;
        let mut stopping = stopping.clone();
        let stop = async move { drop(stopping.changed().await) };
        servers.spawn(lockkit_server::serve(listener, service.clone(), stop));
        output::note(format!("serving the locks of {} at {url}", chosen.url_without_passwords()));
    }
    let reloads = args.tokens.is_some() || tls.is_some();
    let ended = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Signal::HUP if reloads => reload(&service, tls.as_ref()),
                _ => break None,
            },
            ended = servers.join_next() => break ended,
        }
    };
    drop(stop);
    if let Some(Ok(Err(error))) = ended {
        return Err(ExitError::os("cannot go on serving", error));
    }
    while servers.join_next().await.is_some() {}
    Ok(0)
}

/// Makes a token. Its line is in the file before anybody has it.
fn token(args: &TokenArgs) -> Result<u8, ExitError> {
    let token = NewToken::random(&args.name, &args.may)?;
    match &args.tokens {
        Some(file) => {
            token.append_to(file)?;
            output::print_line(token.secret())?;
            output::note("servers that run read the file again on SIGHUP");
        }
        None => output::print(&format!("{}\n{}\n", token.secret(), token.file_line()))?,
    }
    Ok(0)
}

fn certificates(args: &ServeArgs) -> Result<Option<Tls>, Error> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    Tls::load(certificate, key, args.client_ca.clone()).map(Some)
}

fn settings(args: &ServeArgs, has_tls: bool) -> Result<ServiceSettings, ExitError> {
    let mut settings = ServiceSettings::new().terraform(terraform(args));
    for place in args.listen.iter().filter(|place| place.is_remote()) {
        if args.tokens.is_none() || !has_tls {
            return Err(ExitError::usage(format!(
                "{place} is reached from other hosts: give --tokens and --tls-cert, or listen on \
                 127.0.0.1 or a Unix socket",
            )));
        }
        settings = match place {
            Listen::Tcp(address) => match address.ip() {
                ip if ip.is_unspecified() && args.host.is_empty() => {
                    return Err(ExitError::usage(format!(
                        "{place} stands for every address of this host: say with --host by which \
                         name clients reach it",
                    )));
                }
                IpAddr::V4(ip) => settings.host(ip.to_string()),
                IpAddr::V6(ip) => settings.host(format!("[{ip}]")),
            },
            Listen::Unix(_) => settings,
        };
    }
    for host in &args.host {
        settings = settings.host(host);
    }
    Ok(match &args.tokens {
        Some(file) => settings.tokens(AccessTokens::load(file)?),
        None => settings,
    })
}

fn terraform(args: &ServeArgs) -> TerraformSettings {
    TerraformSettings {
        longest: args.terraform_longest,
        unlocked_writes: args.terraform_unlocked_writes,
        body: usize::from(args.terraform_body) << 20,
        stored: args.terraform_stored.map(|megabytes| usize::from(megabytes) * 1_000_000),
        ..TerraformSettings::default()
    }
}

/// Reads the files again. Each that has an error stays as it was, which is said.
fn reload(service: &Service, tls: Option<&Tls>) {
    let tokens = service.reload();
    let certificates = tls.map_or(Ok(()), Tls::reload);
    let mut well = true;
    for error in [tokens, certificates].into_iter().filter_map(Result::err) {
        well = false;
        output::note(format!("nothing changed: {error}"));
    }
    if well {
        output::note("tokens and certificates were read again".to_owned());
    }
}

/// Lets the process have as many files as the system allows it: every client that waits has a
/// connection. What is refused here is met later, when no connection can be accepted.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

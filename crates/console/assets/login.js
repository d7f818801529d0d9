// The page where one logs in. The address stays as it is, so that one comes back to where one was.

import { change } from "./api.js";
import { h, show } from "./dom.js";
import { errorBox } from "./messages.js";
import { leaveForProvider } from "./session.js";

const METHODS = "session/methods";
const PROVIDER = "session/oidc";

/** Shows the form, and calls `then(session)` after a log-in. */
export function showLogin(then, hasEnded) {
    document.title = "Log in - Atoll";
    const main = document.getElementById("main");
    const state = { error: null, isBusy: false, needsCode: false, methods: { password: true, oidc: false } };
    const submit = async (event) => {
        event.preventDefault();
        if (state.isBusy) return;
        const { user, password, code } = event.target.elements;
        Object.assign(state, { isBusy: true, error: null });
        draw();
        try {
            const body = { user: user.value, password: password.value };
            if (code) body.code = code.value.trim();
            const session = await change("POST", "/session", body);
            main.replaceChildren();
            then(session);
        } catch (error) {
            const isAsked = error.code === "CODE_MISSING";
            const isOfCode = isAsked || error.code === "CODE_WRONG";
            Object.assign(state, { isBusy: false, error: isAsked ? null : error, needsCode: isOfCode });
            draw();
            const field = isOfCode ? document.getElementById("code") : password;
            field.value = "";
            field.focus();
        }
    };
    const draw = () => show(main, form(state, submit, hasEnded));
    main.replaceChildren();
    draw();
    main.querySelector("input").focus();
    readMethods().then((methods) => {
        if (!main.querySelector("form.login")) return;
        state.methods = methods;
        draw();
    });
}

/** How one can log in. Without an answer, as if with a password: the server says then what is wrong. */
async function readMethods() {
    try {
        const answer = await fetch(METHODS, { cache: "no-store", credentials: "omit", redirect: "error" });
        return await answer.json();
    } catch {
        return { password: true, oidc: false };
    }
}

function form(state, submit, hasEnded) {
    const field = (name, label, type, autocomplete) =>
        h(
            "div",
            { class: "field" },
            h("label", { for: name }, label),
            h("input", {
                id: name,
                name,
                type,
                autocomplete,
                required: true,
                autocapitalize: "none",
                spellcheck: "false",
            }),
        );
    return h(
        "form",
        { class: "login panel", on: { submit } },
        h("h1", { tabindex: "-1" }, "Log in"),
        hasEnded
            ? h(
                  "p",
                  { class: "box note", role: "status" },
                  "Your session has ended. Log in to return to your page.",
              )
            : null,
        state.methods.oidc
            ? h(
                  "button",
                  {
                      key: "oidc",
                      type: "button",
                      id: "oidc",
                      class: state.methods.password ? null : "primary",
                      on: { click: () => leaveForProvider(PROVIDER) },
                  },
                  "Log in with OpenID Connect",
              )
            : null,
        state.methods.password ? passwordFields(state, field) : null,
    );
}

function passwordFields(state, field) {
    return [
        field("user", "User", "text", "username"),
        field("password", "Password", "password", "current-password"),
        state.needsCode ? field("code", "Code of the authenticator, or a recovery code", "text", "one-time-code") : null,
        state.error ? errorBox(state.error) : null,
        h(
            "button",
            { type: "submit", class: "primary", disabled: state.isBusy },
            state.isBusy ? "Logging in…" : "Log in",
        ),
    ];
}
